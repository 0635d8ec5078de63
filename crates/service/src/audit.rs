//! Lines of the log about requests.

use crate::message::{Class, Request};
use crate::name::TunnelName;

/// Characters of the reasons in a line, at most.
const MAX_REASONS: usize = 1000;

/// A request for the log, without its file.
pub(crate) struct Audit {
    caller: u32,
    action: &'static str,
    tunnel: Option<TunnelName>,
    /// The class that the request needs, and the reasons for it, once they are known.
    needs: Option<(Class, Vec<String>)>,
}

impl Audit {
    pub(crate) fn new(caller: u32, request: &Request) -> Self {
        let (action, tunnel) = match request {
            Request::List => ("List", None),
            Request::Status { tunnel, .. } => ("Status", tunnel.as_ref()),
            Request::Flows { tunnel, .. } => ("Flows", tunnel.as_ref()),
            Request::Up { tunnel, .. } => ("Up", Some(tunnel)),
            Request::Down { tunnel } => ("Down", Some(tunnel)),
            Request::Reload { tunnel, .. } => ("Reload", Some(tunnel)),
            Request::AppAllow { tunnel, .. } => ("AppAllow", Some(tunnel)),
            Request::AppRemove { tunnel, .. } => ("AppRemove", Some(tunnel)),
        };
        Self {
            caller,
            action,
            tunnel: tunnel.cloned(),
            needs: None,
        }
    }

    pub(crate) fn set_needs(&mut self, class: Class, reasons: &[String]) {
        self.needs = Some((class, reasons.to_vec()));
    }

    /// Returns the line for an executed request.
    pub(crate) fn executed(&self, status: u8) -> String {
        format!("executed {}: exit status {status}", self.request())
    }

    /// Returns the line for a refused request.
    pub(crate) fn refused(&self, reason: &str) -> String {
        format!(
            "refused {}: {}",
            self.request(),
            one_line(reason, MAX_REASONS)
        )
    }

    /// Returns the line for a request that the front did not have executed.
    pub(crate) fn not_authorized(&self) -> String {
        format!("not authorised, or the caller has gone: {}", self.request())
    }

    fn request(&self) -> String {
        let Self {
            caller,
            action,
            tunnel,
            needs,
        } = self;
        let mut text = (*action).to_owned();
        if let Some(tunnel) = tunnel {
            text += &format!(" of {tunnel}");
        }
        text += &format!(" by user {caller}");
        match needs {
            None => {}
            Some((Class::User, _)) => text += ", class user",
            Some((Class::Admin, reasons)) => {
                let reasons = one_line(&reasons.join("; "), MAX_REASONS);
                text += &format!(", class admin ({reasons})");
            }
        }
        text
    }
}

/// Returns the beginning of a text, without control characters.
pub(crate) fn one_line(text: &str, most: usize) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::Audit;
    use crate::message::{Class, Request, Source};

    #[test]
    fn a_line_names_action_tunnel_user_class_and_reasons() {
        let request = Request::Up {
            tunnel: "home".parse().expect("a name"),
            source: Source::Listed,
        };
        let mut audit = Audit::new(1000, &request);
        assert_eq!(
            audit.refused("home is up already"),
            "refused Up of home by user 1000: home is up already"
        );
        let reasons = ["the file sets Table", "line\n\u{1b}[2Jbreak"].map(str::to_owned);
        audit.set_needs(Class::Admin, &reasons);
        let request = "Up of home by user 1000, class admin (the file sets Table; line  [2Jbreak)";
        assert_eq!(
            audit.executed(0),
            format!("executed {request}: exit status 0")
        );
        assert!(audit.not_authorized().ends_with(request));
        audit.set_needs(Class::User, &[]);
        assert_eq!(
            audit.executed(1),
            "executed Up of home by user 1000, class user: exit status 1"
        );
        let list = Audit::new(1001, &Request::List);
        assert_eq!(list.refused("no"), "refused List by user 1001: no");
    }
}
