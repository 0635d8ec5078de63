//! Entries of a file that select applications for the tunnel, and the decisions they make.

use serde::{Deserialize, Serialize};

use super::{Application, Process, User};

/// An entry of a file that names an application.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rule {
    /// The application.
    pub application: Application,
    /// Line of the file, counted from 1; 0 if it does not come from a file.
    pub line: usize,
    /// Target of the symbolic link that `application` names. It belongs to the rule too; see
    /// [`AppRules::follow_links`].
    pub target: Option<Application>,
}

impl Rule {
    /// Returns a rule about an application that is not known to be a symbolic link.
    #[must_use]
    pub fn new(application: Application, line: usize) -> Self {
        Self {
            application,
            line,
            target: None,
        }
    }

    /// Returns true if a process belongs to the application.
    #[must_use]
    pub fn matches(&self, process: &Process<'_>) -> bool {
        let mut all = std::iter::once(&self.application).chain(&self.target);
        all.any(|application| application.matches(process))
    }
}

/// The applications that use the tunnel.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct AppRules {
    /// `AllowedApps`, in the order of the file.
    pub allowed: Vec<Rule>,
    /// `DisallowedApps`, in the order of the file.
    pub disallowed: Vec<Rule>,
    /// `Children`.
    pub children: Children,
    /// `AppsOfUser`.
    pub of_user: Option<AppsOfUser>,
}

/// The only user whose processes a rule set selects.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AppsOfUser {
    /// The user.
    pub user: User,
    /// Line of the file, counted from 1; 0 if it does not come from a file.
    pub line: usize,
}

/// A user name that this system does not know, and its line of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownUser {
    /// The user name.
    pub name: String,
    /// The line.
    pub line: usize,
}

/// The rule of a program that no entry names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
pub enum Children {
    /// The rule of the program that started it.
    #[default]
    Inherit,
    /// No rule: each program is compared for itself.
    Own,
}

/// Decision for an application.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Decision {
    /// It uses the tunnel.
    Tunnel,
    /// It bypasses the tunnel.
    Bypass,
}

/// Decision for a process, with the rule that makes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppVerdict<'a> {
    /// The decision.
    pub decision: Decision,
    /// The rule that decides, if one does.
    pub rule: Option<&'a Rule>,
    /// True if the rule names an ancestor of the process.
    pub is_inherited: bool,
    /// True if the process is of another user than [`AppRules::of_user`]. No rule decides then.
    pub is_of_other_user: bool,
}

impl AppRules {
    /// Returns true if there is no rule, so that every application uses the tunnel.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.allowed.is_empty() && self.disallowed.is_empty()
    }

    /// Decides for a process. Returns the rule too, if one decides.
    ///
    /// A process of another user than `of_user` bypasses the tunnel.
    ///
    /// The order is WireSock's: a process that `allowed` names uses the tunnel, even if
    /// `disallowed` names it too. One that only `disallowed` names bypasses it. Any other
    /// process bypasses the tunnel if there is an `AllowedApps`, and uses it if there is none.
    #[must_use]
    pub fn decide<'a>(&'a self, process: &Process<'_>) -> (Decision, Option<&'a Rule>) {
        if self.is_of_other_user(process) {
            return (Decision::Bypass, None);
        }
        let first = |rules: &'a [Rule]| rules.iter().find(|rule| rule.matches(process));
        if let Some(rule) = first(&self.allowed) {
            return (Decision::Tunnel, Some(rule));
        }
        if let Some(rule) = first(&self.disallowed) {
            return (Decision::Bypass, Some(rule));
        }
        let rest = if self.allowed.is_empty() {
            Decision::Tunnel
        } else {
            Decision::Bypass
        };
        (rest, None)
    }

    /// Returns true if the rules are about another user than the process's.
    #[must_use]
    pub fn is_of_other_user(&self, process: &Process<'_>) -> bool {
        let own = User::Id(process.uid);
        self.of_user.as_ref().is_some_and(|only| only.user != own)
    }

    /// Decides for a process as [`Self::decide`] does. If no rule names the process, and children
    /// inherit ([`Children`]), the first of its `ancestors` whose executable a rule names decides.
    /// `ancestors` are its parent, the parent's parent, and so on.
    #[must_use]
    pub fn decide_with_ancestors<'a, 'p>(
        &'a self,
        process: &Process<'_>,
        ancestors: impl IntoIterator<Item = Process<'p>>,
    ) -> AppVerdict<'a> {
        let (decision, rule) = self.decide(process);
        let own = AppVerdict {
            decision,
            rule,
            is_inherited: false,
            is_of_other_user: self.is_of_other_user(process),
        };
        if rule.is_some() || own.is_of_other_user || self.children == Children::Own {
            return own;
        }
        let first = |rules: &'a [Rule], ancestor: &Process<'_>| {
            let mut rules = rules.iter();
            rules.find(|rule| rule.application.is_executable() && rule.matches(ancestor))
        };
        let inherited = |decision, rule| AppVerdict {
            decision,
            rule: Some(rule),
            is_inherited: true,
            is_of_other_user: false,
        };
        let by = ancestors.into_iter().find_map(|ancestor| {
            let allowed = first(&self.allowed, &ancestor);
            let allowed = allowed.map(|rule| inherited(Decision::Tunnel, rule));
            let disallowed = || first(&self.disallowed, &ancestor);
            allowed.or_else(|| disallowed().map(|rule| inherited(Decision::Bypass, rule)))
        });
        by.unwrap_or(own)
    }

    /// Makes rules that name a symbolic link match its target too. `look_up` returns the target.
    pub fn follow_links(&mut self, mut look_up: impl FnMut(&Application) -> Option<Application>) {
        for rule in self.allowed.iter_mut().chain(&mut self.disallowed) {
            rule.target = look_up(&rule.application);
        }
    }

    /// Replaces user names by user IDs.
    ///
    /// # Errors
    /// Returns the first user that `look_up` does not know. The users before it are resolved.
    pub fn resolve_users(
        &mut self,
        mut look_up: impl FnMut(&str) -> Option<u32>,
    ) -> Result<(), UnknownUser> {
        let rules = self.allowed.iter_mut().chain(&mut self.disallowed);
        let of_rules = rules.filter_map(|rule| match &mut rule.application {
            Application::User(user) => Some((user, rule.line)),
            _ => None,
        });
        let only = (self.of_user.iter_mut()).map(|only| (&mut only.user, only.line));
        for (user, line) in only.chain(of_rules) {
            if !user.resolve(&mut look_up) {
                let name = user.to_string();
                return Err(UnknownUser { name, line });
            }
        }
        Ok(())
    }
}
