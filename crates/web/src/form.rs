//! Forms of the page, as browsers send them.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use taupe_web_link::{Place, Switch};

/// Bytes of a form, at most.
pub(crate) const MAX_FORM: usize = 8 << 10;

/// Values of the field `place`.
pub(crate) const ALLOWED: &str = "allowed";
pub(crate) const DISALLOWED: &str = "disallowed";
pub(crate) const NOWHERE: &str = "nowhere";

const FORM_TYPE: &[u8] = b"application/x-www-form-urlencoded";

/// Returns true if the page of this server has sent a form. Browsers send `Origin` with each form, and new
/// ones `Sec-Fetch-Site`.
pub(crate) fn is_own_page(headers: &HeaderMap) -> bool {
    let only = |name| {
        let mut values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
        (values.next(), values.next().is_none())
    };
    let (site, is_single_site) = only(HeaderName::from_static("sec-fetch-site"));
    let (origin, is_single_origin) = only(header::ORIGIN);
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
    let is_own = |origin: &[u8]| origin.strip_prefix(b"http://") == host;
    is_single_site
        && is_single_origin
        && site.is_none_or(|it| it == b"same-origin")
        && origin.is_none_or(is_own)
        && (site.is_some() || origin.is_some())
}

/// A form of the page.
pub(crate) struct Form {
    /// Value of the session for forms.
    pub(crate) value: String,
    pub(crate) switch: Switch,
}

impl Form {
    /// Parses the body of a request with these headers.
    pub(crate) fn parse(headers: &HeaderMap, body: &[u8]) -> Option<Self> {
        let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
        if kind != Some(FORM_TYPE) {
            return None;
        }
        let text = std::str::from_utf8(body).ok()?;
        let pairs: Vec<_> = text.split('&').map(pair).collect::<Option<_>>()?;
        let field = |name: &str| {
            let mut values = pairs.iter().filter(|(field, _)| field == name);
            let value = values.next().map(|(_, value)| value.trim().to_owned());
            value.filter(|it| !it.is_empty() && values.next().is_none())
        };
        let place = match &*field("place")? {
            ALLOWED => Place::Allowed,
            DISALLOWED => Place::Disallowed,
            NOWHERE => Place::Nowhere,
            _ => return None,
        };
        Some(Self {
            value: field("form")?,
            switch: Switch {
                tunnel: field("tunnel")?,
                application: field("application")?,
                place,
            },
        })
    }
}

fn pair(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    Some((decoded(name)?, decoded(value)?))
}

/// Decodes a part of a form (URL standard, `application/x-www-form-urlencoded`).
fn decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high << 4 | low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn forms_are_decoded() {
        assert_eq!(decoded("a+b%2f%C3%A9").as_deref(), Some("a b/é"));
        for wrong in ["%", "%2", "%2g", "%ff"] {
            assert_eq!(decoded(wrong), None, "{wrong}");
        }
    }
}
