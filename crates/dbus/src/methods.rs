//! Methods of `org.taupe.Service1` as requests.

use std::os::fd::OwnedFd;

use taupe_service::{MAX_KEY_FILES, MAX_PATH, MAX_TEXT, Request, Source, TunnelName};
use thiserror::Error;
use zbus::Message;
use zbus::message::Builder;

/// Descriptors with their paths in the file.
type KeyFiles = Vec<(String, zbus::OwnedFd)>;

/// A request with its descriptors.
pub(crate) type Call = (Request, Vec<OwnedFd>);

/// Error of a method call that is no request.
#[derive(Debug, Error)]
pub(crate) enum MethodError {
    #[error("there is no such method")]
    Unknown,
    #[error("the arguments are not those of the method")]
    Arguments,
    #[error("the arguments have more than {MAX_TEXT} bytes")]
    TooLong,
    #[error("{0}")]
    Name(#[from] taupe_service::InvalidName),
    #[error("the file names more than {MAX_KEY_FILES} other files; write keys into the file")]
    KeyFiles,
}

/// Reads a method call.
pub(crate) fn read(message: &Message) -> Result<Call, MethodError> {
    let body = message.body();
    if body.len() > MAX_TEXT {
        return Err(MethodError::TooLong);
    }
    let header = message.header();
    let member = header.member().ok_or(MethodError::Unknown)?;
    let arguments = |_| MethodError::Arguments;
    let tunnel = || -> Result<TunnelName, MethodError> {
        let name: String = body.deserialize().map_err(arguments)?;
        Ok(name.parse()?)
    };
    let view = || -> Result<(Option<TunnelName>, bool, bool), MethodError> {
        let (name, all, json): (String, bool, bool) = body.deserialize().map_err(arguments)?;
        let name = match &*name {
            "" => None,
            name => Some(name.parse()?),
        };
        Ok((name, all, json))
    };
    let file = || -> Result<(TunnelName, Source, Vec<OwnedFd>), MethodError> {
        let (name, file, key_files): (String, zbus::OwnedFd, KeyFiles) =
            body.deserialize().map_err(arguments)?;
        if key_files.len() > MAX_KEY_FILES {
            return Err(MethodError::KeyFiles);
        }
        let (paths, keys): (Vec<String>, Vec<zbus::OwnedFd>) = key_files.into_iter().unzip();
        let descriptors = std::iter::once(file).chain(keys).map(OwnedFd::from);
        let source = Source::Passed { key_files: paths };
        Ok((name.parse()?, source, descriptors.collect()))
    };
    let application = || -> Result<(TunnelName, String), MethodError> {
        let (name, application): (String, String) = body.deserialize().map_err(arguments)?;
        if application.len() > MAX_PATH {
            return Err(MethodError::TooLong);
        }
        Ok((name.parse()?, application))
    };
    let listed = Source::Listed;
    let request = match member.as_str() {
        "List" => body
            .deserialize()
            .map(|()| Request::List)
            .map_err(arguments)?,
        "Status" => {
            let (tunnel, all, json) = view()?;
            Request::Status { tunnel, all, json }
        }
        "Flows" => {
            let (tunnel, all, json) = view()?;
            Request::Flows { tunnel, all, json }
        }
        "Up" => {
            let (tunnel, source, descriptors) = file()?;
            return Ok((Request::Up { tunnel, source }, descriptors));
        }
        "Reload" => {
            let (tunnel, source, descriptors) = file()?;
            return Ok((Request::Reload { tunnel, source }, descriptors));
        }
        "UpListed" => Request::Up {
            tunnel: tunnel()?,
            source: listed,
        },
        "ReloadListed" => Request::Reload {
            tunnel: tunnel()?,
            source: listed,
        },
        "Down" => Request::Down { tunnel: tunnel()? },
        "AppAllow" => {
            let (tunnel, application) = application()?;
            Request::AppAllow {
                tunnel,
                application,
            }
        }
        "AppRemove" => {
            let (tunnel, application) = application()?;
            Request::AppRemove {
                tunnel,
                application,
            }
        }
        _ => return Err(MethodError::Unknown),
    };
    Ok((request, Vec::new()))
}

/// Returns the name of a request's method.
pub(crate) fn name(request: &Request) -> &'static str {
    match request {
        Request::List => "List",
        Request::Status { .. } => "Status",
        Request::Flows { .. } => "Flows",
        Request::Up {
            source: Source::Passed { .. },
            ..
        } => "Up",
        Request::Up { .. } => "UpListed",
        Request::Down { .. } => "Down",
        Request::Reload {
            source: Source::Passed { .. },
            ..
        } => "Reload",
        Request::Reload { .. } => "ReloadListed",
        Request::AppAllow { .. } => "AppAllow",
        Request::AppRemove { .. } => "AppRemove",
    }
}

/// Writes a method call. Fails if the descriptors are not those of the request.
pub(crate) fn build(
    builder: Builder<'_>,
    request: &Request,
    descriptors: Vec<OwnedFd>,
) -> zbus::Result<Message> {
    let mut descriptors = descriptors.into_iter().map(zbus::OwnedFd::from);
    let mut with_file = |tunnel: &TunnelName, key_files: &[String]| {
        let missing = || zbus::Error::from(std::io::Error::other("a descriptor is missing"));
        let file = descriptors.next().ok_or_else(missing)?;
        let keys: KeyFiles = key_files.iter().cloned().zip(&mut descriptors).collect();
        Ok::<_, zbus::Error>((tunnel.to_string(), file, keys))
    };
    let text = |tunnel: &Option<TunnelName>| {
        tunnel
            .as_ref()
            .map(TunnelName::to_string)
            .unwrap_or_default()
    };
    match request {
        Request::List => builder.build(&()),
        Request::Status { tunnel, all, json } | Request::Flows { tunnel, all, json } => {
            builder.build(&(text(tunnel), *all, *json))
        }
        Request::Up {
            tunnel,
            source: Source::Passed { key_files },
        }
        | Request::Reload {
            tunnel,
            source: Source::Passed { key_files },
        } => builder.build(&with_file(tunnel, key_files)?),
        Request::Up { tunnel, .. } | Request::Reload { tunnel, .. } | Request::Down { tunnel } => {
            builder.build(&tunnel.to_string())
        }
        Request::AppAllow {
            tunnel,
            application,
        }
        | Request::AppRemove {
            tunnel,
            application,
        } => builder.build(&(tunnel.to_string(), application)),
    }
}

/// Returns a request in words that a tunnel's name follows, for the question to an administrator.
pub(crate) fn in_words(request: &Request) -> &'static str {
    match request {
        Request::List => "list",
        Request::Status { .. } => "show the state of",
        Request::Flows { .. } => "show the connections of",
        Request::Up { .. } => "bring up",
        Request::Down { .. } => "take down",
        Request::Reload { .. } => "apply a file to",
        Request::AppAllow { .. } => "select an application for",
        Request::AppRemove { .. } => "remove an application from",
    }
}

/// Returns the tunnel of a request, for the question to an administrator.
pub(crate) fn tunnel(request: &Request) -> String {
    let name = match request {
        Request::List => None,
        Request::Status { tunnel, .. } | Request::Flows { tunnel, .. } => tunnel.as_ref(),
        Request::Up { tunnel, .. }
        | Request::Down { tunnel }
        | Request::Reload { tunnel, .. }
        | Request::AppAllow { tunnel, .. }
        | Request::AppRemove { tunnel, .. } => Some(tunnel),
    };
    name.map_or_else(|| "(all tunnels)".to_owned(), TunnelName::to_string)
}

#[cfg(test)]
mod tests {
    use super::{MethodError, build, name, read};
    use crate::bus::{INTERFACE, PATH};
    use std::os::fd::OwnedFd;
    use taupe_service::{Request, Source, seal};
    use zbus::Message;

    fn message(member: &str) -> zbus::message::Builder<'_> {
        Message::method_call(PATH, member).interface(INTERFACE)
    }

    fn seals(count: usize) -> Vec<OwnedFd> {
        (0..count).map(|_| seal(b"text").expect("memory")).collect()
    }

    #[test]
    fn each_request_is_a_method_and_back() {
        let home = || "u-home".parse().expect("a name");
        let passed = || Source::Passed {
            key_files: vec!["a.key".to_owned(), "b.key".to_owned()],
        };
        let application = || "uid:1000".to_owned();
        for (request, count) in [
            (Request::List, 0),
            (
                Request::Status {
                    tunnel: None,
                    all: true,
                    json: false,
                },
                0,
            ),
            (
                Request::Flows {
                    tunnel: Some(home()),
                    all: false,
                    json: true,
                },
                0,
            ),
            (
                Request::Up {
                    tunnel: home(),
                    source: passed(),
                },
                3,
            ),
            (
                Request::Up {
                    tunnel: home(),
                    source: Source::Listed,
                },
                0,
            ),
            (Request::Down { tunnel: home() }, 0),
            (
                Request::Reload {
                    tunnel: home(),
                    source: passed(),
                },
                3,
            ),
            (
                Request::Reload {
                    tunnel: home(),
                    source: Source::Listed,
                },
                0,
            ),
            (
                Request::AppAllow {
                    tunnel: home(),
                    application: application(),
                },
                0,
            ),
            (
                Request::AppRemove {
                    tunnel: home(),
                    application: application(),
                },
                0,
            ),
        ] {
            let member = name(&request);
            let built = build(message(member), &request, seals(count)).expect("a message");
            let (again, descriptors) = read(&built).expect("a request");
            assert_eq!((&again, descriptors.len()), (&request, count));
            let described = include_str!("introspection.xml");
            assert!(
                described.contains(&format!("<method name=\"{member}\">")),
                "{member}"
            );
        }
    }

    #[test]
    fn other_calls_are_refused() {
        let of = |member: &str, message: Message| match read(&message) {
            Err(error) => error,
            Ok(read) => panic!("{member}: {read:?}"),
        };
        let unknown = message("Run").build(&"rm -rf /").expect("a message");
        assert!(matches!(of("Run", unknown), MethodError::Unknown));
        // A path in place of a descriptor.
        let path = message("Up").build(&("u-home", "/etc/shadow", Vec::<(String, String)>::new()));
        assert!(matches!(
            of("Up", path.expect("a message")),
            MethodError::Arguments
        ));
        for name in ["../x", "sixteen-letters-", "a\u{1}b", "", "-x"] {
            let down = message("Down").build(&name).expect("a message");
            assert!(matches!(of("Down", down), MethodError::Name(_)), "{name}");
        }
        let long = message("Down")
            .build(&"x".repeat(1 << 20))
            .expect("a message");
        assert!(matches!(of("Down", long), MethodError::TooLong));
        let more = message("List").build(&"more").expect("a message");
        assert!(matches!(of("List", more), MethodError::Arguments));
        let source = Source::Passed {
            key_files: vec!["k".to_owned(); 16],
        };
        let many = Request::Up {
            tunnel: "u-home".parse().expect("a name"),
            source,
        };
        let many = build(message("Up"), &many, seals(17)).expect("a message");
        assert!(matches!(of("Up", many), MethodError::KeyFiles));
    }
}
