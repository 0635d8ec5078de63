use proptest::prelude::*;

use super::*;

fn application(text: &str) -> Application {
    text.parse()
        .unwrap_or_else(|error| panic!("`{text}' is {error}"))
}

fn rules(allowed: &str, disallowed: &str) -> AppRules {
    let list = |text: &str| {
        let texts = text.split_terminator(", ").enumerate();
        texts
            .map(|(index, text)| Rule::new(application(text), index + 1))
            .collect()
    };
    AppRules {
        allowed: list(allowed),
        disallowed: list(disallowed),
        ..AppRules::default()
    }
}

/// Returns a process of user 1000.
fn process<'a>(path: &'a str, cgroup: &'a str) -> Process<'a> {
    Process {
        path: path.as_bytes(),
        name: file_name(path.as_bytes()),
        cgroup: cgroup.as_bytes(),
        uid: 1000,
    }
}

#[test]
fn applications_and_their_printed_form() {
    for (text, printed) in [
        ("firefox", "firefox"),
        ("Firefox.EXE", "firefox"),
        ("x.exe.exe", "x"),
        (".exe", ".exe"),
        ("ch*", "ch*"),
        ("x.exe*", "x.exe*"),
        ("*", "*"),
        ("Web-Browser_2.0+x", "web-browser_2.0+x"),
        ("name:firefox", "firefox"),
        ("NAME: two Words ", "name:two words"),
        ("name:a:b*", "name:a:b*"),
        ("/usr/bin/curl", "/usr/bin/curl"),
        ("exe:/usr/bin/Curl", "/usr/bin/Curl"),
        ("/opt/My App/run: it", "/opt/My App/run: it"),
        ("/opt/games/", "/opt/games/"),
        ("dir:/opt/games", "/opt/games/"),
        ("dir:/", "/"),
        ("/", "/"),
        ("cgroup:app-firefox*", "cgroup:app-firefox*"),
        ("cgroup:App", "cgroup:App"),
        (r"cgroup:app-a\x2db.scope", r"cgroup:app-a\x2db.scope"),
        ("cgroup:/user.slice/x", "cgroup:/user.slice/x"),
        ("cgroup:/user.slice/", "cgroup:/user.slice"),
        ("cgroup:/user.slice/*", "cgroup:/user.slice"),
        ("cgroup:/", "cgroup:/"),
        ("uid:1000", "uid:1000"),
        ("uid:007", "uid:7"),
        ("uid:4294967294", "uid:4294967294"),
        ("uid:alice", "uid:alice"),
        ("uid:4ever", "uid:4ever"),
        ("flatpak:org.mozilla.firefox", "flatpak:org.mozilla.firefox"),
        ("snap:firefox", "snap:firefox"),
        ("snap:foo-bar_work", "snap:foo-bar_work"),
    ] {
        let read = application(text);
        assert_eq!(read.to_string(), printed, "{text}");
        assert_eq!(application(printed), read, "{text}");
    }
}

#[test]
fn invalid_applications() {
    use ApplicationError as Error;
    let name = "n".repeat(256);
    let folders = "/x".repeat(32);
    for (text, error) in [
        ("", Error::Empty),
        (" ", Error::Empty),
        ("uid:", Error::Missing),
        ("exe: ", Error::Missing),
        ("app:firefox", Error::UnknownKind),
        ("http://example.org", Error::UnknownKind),
        (":firefox", Error::UnknownKind),
        ("\"firefox\"", Error::Character),
        ("a\u{1}", Error::Character),
        ("a,b", Error::Character),
        ("firefox chrome", Error::Separator),
        ("firefox; chrome", Error::Separator),
        ("firefox;/opt/x/", Error::Separator),
        ("/usr/bin/a /usr/bin/b", Error::Separator),
        ("/usr/bin/a;/usr/bin/b", Error::Separator),
        ("/opt/a/ /opt/b/", Error::Separator),
        ("cgroup:a b", Error::Separator),
        (r"name:x\y", Error::WindowsPath),
        (r"/opt\x", Error::WindowsPath),
        ("./curl", Error::Relative),
        ("bin/curl", Error::Relative),
        ("~/bin/curl", Error::Relative),
        ("exe:curl", Error::Relative),
        ("dir:games/", Error::Relative),
        ("cgroup:user.slice/x", Error::Relative),
        ("name:/usr/bin/curl", Error::NotAName),
        ("exe:/opt/games/", Error::Folder),
        ("exe:/", Error::Folder),
        ("/usr/../bin/curl", Error::NotNormalised),
        ("/usr//curl", Error::NotNormalised),
        ("//", Error::NotNormalised),
        ("/opt/./", Error::NotNormalised),
        ("cgroup:/a//b", Error::NotNormalised),
        ("..", Error::NotNormalised),
        ("*fox", Error::Wildcard),
        ("f*x", Error::Wildcard),
        ("f**", Error::Wildcard),
        ("fire*.exe", Error::Wildcard),
        ("/usr/bin/fire*", Error::Wildcard),
        ("/usr/lib/firefox/*", Error::Wildcard),
        ("cgroup:/a/b*", Error::Wildcard),
        ("cgroup:a*b", Error::Wildcard),
        ("uid:*", Error::User),
        (&name, Error::TooLong),
        (&format!("/{name}"), Error::TooLong),
        (&format!("{folders}/x"), Error::TooDeep),
        ("cgroup:/sys/fs/cgroup", Error::CgroupMount),
        ("cgroup:/sys/fs/cgroup/user.slice", Error::CgroupMount),
        ("uid:-1", Error::User),
        ("uid:4294967295", Error::User),
        ("uid:1000 1001", Error::User),
        ("flatpak:firefox", Error::Flatpak),
        ("flatpak:org..firefox", Error::Flatpak),
        ("flatpak:org.mozilla.*", Error::Flatpak),
        ("snap:Firefox", Error::Snap),
        ("snap:fire*", Error::Snap),
    ] {
        let read = text.parse::<Application>();
        assert_eq!(read, Err(error), "{text}");
        assert!(!error.to_string().is_empty() && !error.fix().is_empty());
    }
    assert!(folders.parse::<Application>().is_ok());
    assert!(name[1..].parse::<Application>().is_ok());
}

#[cfg(not(windows))]
#[test]
fn windows_paths_are_refused_on_other_systems() {
    for text in [r"C:\Program Files\x.exe", "c:/x.exe", r"games\x"] {
        assert_eq!(
            text.parse::<Application>(),
            Err(ApplicationError::WindowsPath),
            "{text}"
        );
    }
}

#[cfg(windows)]
#[test]
fn windows_paths_are_accepted_on_windows() {
    for text in [r"C:\Program Files\x.exe", "c:/x.exe", r"C:\Games\"] {
        let read = text.parse::<Application>();
        assert!(
            matches!(read, Ok(Application::Windows(_))),
            "{text}: {read:?}"
        );
    }
    assert_eq!(
        r"games\x".parse::<Application>(),
        Err(ApplicationError::Relative)
    );
}

#[test]
fn processes_that_match_an_application() {
    let app = "/user.slice/user-1000.slice/user@1000.service/app.slice";
    let firefox = format!("{app}/app-flatpak-org.mozilla.firefox-4242.scope");
    let dashed = format!(r"{app}/app-flatpak-org.x.a\x2db-7.scope");
    let snap = format!("{app}/snap.firefox.firefox-2b0f.scope/sub");
    for (text, path, cgroup, expected) in [
        ("firefox", "/usr/lib/firefox/firefox", "/", true),
        ("FIREFOX", "/usr/lib/firefox/Firefox", "/", true),
        ("firefox", "/usr/lib/firefox/firefox-bin", "/", false),
        ("firefox*", "/usr/lib/firefox/firefox-bin", "/", true),
        ("firefox", "/opt/firefox/other", "/", false),
        ("x.exe", "/opt/x", "/", true),
        ("x", "/opt/x.EXE", "/", true),
        ("x", "/opt/x.exec", "/", false),
        ("*", "/bin/x", "/", true),
        ("*", "", "/", false),
        ("/usr/bin/curl", "/usr/bin/curl", "/", true),
        ("/usr/bin/curl", "/usr/bin/Curl", "/", false),
        ("/usr/bin/curl", "/usr/bin/curl2", "/", false),
        ("/opt/games/", "/opt/games/a/b", "/", true),
        ("/opt/games/", "/opt/games", "/", false),
        ("/opt/games/", "/opt/games2/a", "/", false),
        ("/", "/bin/x", "/", true),
        ("cgroup:app.slice", "/bin/x", &firefox, true),
        ("cgroup:app", "/bin/x", &firefox, false),
        ("cgroup:App.slice", "/bin/x", &firefox, false),
        ("cgroup:app-flatpak*", "/bin/x", &firefox, true),
        ("cgroup:/user.slice", "/bin/x", &firefox, true),
        ("cgroup:/user", "/bin/x", &firefox, false),
        ("cgroup:/app.slice", "/bin/x", &firefox, false),
        (&format!("cgroup:{firefox}"), "/bin/x", &firefox, true),
        ("cgroup:/", "/bin/x", &firefox, true),
        ("uid:1000", "/bin/x", "/", true),
        ("uid:1001", "/bin/x", "/", false),
        ("uid:alice", "/bin/x", "/", false),
        ("flatpak:org.mozilla.firefox", "/bin/x", &firefox, true),
        ("flatpak:org.mozilla.fire", "/bin/x", &firefox, false),
        ("flatpak:org.x.a-b", "/bin/x", &dashed, true),
        ("flatpak:org.x.a", "/bin/x", &dashed, false),
        ("snap:firefox", "/bin/x", &snap, true),
        ("snap:fire", "/bin/x", &snap, false),
    ] {
        let matches = application(text).matches(&process(path, cgroup));
        assert_eq!(matches, expected, "{text}: {path} in {cgroup}");
    }
}

#[test]
fn applications_that_include_others() {
    for (wide, narrow) in [
        ("fire*", "firefox"),
        ("fire*", "firefox*"),
        ("*", "/usr/bin/curl"),
        ("curl", "/usr/bin/Curl"),
        ("x", "/opt/x.exe"),
        ("/opt/", "/opt/games/"),
        ("/opt/", "/opt/games/x"),
        ("cgroup:app-*", "flatpak:org.x.y"),
        ("cgroup:user*", "cgroup:/user.slice/x"),
        ("cgroup:/user.slice", "cgroup:/user.slice/x"),
        ("cgroup:/", "cgroup:/user.slice"),
    ] {
        let (wide, narrow) = (application(wide), application(narrow));
        assert!(wide.covers(&narrow), "{wide} {narrow}");
        assert!(!narrow.covers(&wide), "{wide} {narrow}");
    }
    for (a, b) in [
        ("fire", "firefox"),
        ("/opt/x", "/opt/x/"),
        ("/opt/games/", "/opt/games2/x"),
        ("cgroup:user", "cgroup:/user.slice/x"),
        ("cgroup:/user", "cgroup:/user.slice"),
        ("firefox", "cgroup:firefox"),
        ("uid:1", "uid:2"),
        ("snap:a", "snap:ab"),
    ] {
        let (a, b) = (application(a), application(b));
        assert!(!a.covers(&b) && !b.covers(&a), "{a} {b}");
    }
}

/// WireSock's table of decisions, row by row.
#[test]
fn decisions() {
    let listed = process("/usr/bin/a", "/");
    let other = process("/usr/bin/b", "/");
    for (allowed, disallowed, of_listed, of_other) in [
        ("", "", Decision::Tunnel, Decision::Tunnel),
        ("a", "", Decision::Tunnel, Decision::Bypass),
        ("", "a", Decision::Bypass, Decision::Tunnel),
        ("a", "a", Decision::Tunnel, Decision::Bypass),
        ("a", "b", Decision::Tunnel, Decision::Bypass),
        ("c", "a", Decision::Bypass, Decision::Bypass),
        ("c", "d", Decision::Bypass, Decision::Bypass),
    ] {
        let rules = rules(allowed, disallowed);
        let text = format!("allowed {allowed}, disallowed {disallowed}");
        assert_eq!(rules.decide(&listed).0, of_listed, "{text}");
        assert_eq!(rules.decide(&other).0, of_other, "{text}");
    }
}

#[test]
fn decisions_name_their_rule() {
    let rules = rules("c*, curl", "/usr/bin/, wget");
    let line = |path| {
        let process = process(path, "/");
        let (decision, rule) = rules.decide(&process);
        (decision, rule.map(|rule| rule.line))
    };
    assert_eq!(line("/usr/bin/curl"), (Decision::Tunnel, Some(1)));
    assert_eq!(line("/usr/bin/ssh"), (Decision::Bypass, Some(1)));
    assert_eq!(line("/opt/wget"), (Decision::Bypass, Some(2)));
    assert_eq!(line("/opt/ssh"), (Decision::Bypass, None));
}

#[test]
fn children_inherit_the_rule_of_their_ancestors() {
    let judge = |rules: &AppRules, paths: &[&str]| {
        let mut processes = paths.iter().map(|path| process(path, "/app.slice"));
        let own = processes.next().expect("a process");
        let AppVerdict {
            decision,
            rule,
            is_inherited,
            is_of_other_user: _,
        } = rules.decide_with_ancestors(&own, processes);
        (decision, rule.map(|rule| rule.line), is_inherited)
    };
    let (tunnel, bypass) = (Decision::Tunnel, Decision::Bypass);
    let mut rules = rules("git, /opt/app/, uid:0", "ssh");
    for (paths, expected) in [
        (&["/bin/curl"][..], (bypass, None, false)),
        (&["/bin/curl", "/bin/git"], (tunnel, Some(1), true)),
        (
            &["/bin/curl", "/bin/sh", "/opt/app/x"],
            (tunnel, Some(2), true),
        ),
        // A process's own rule takes precedence, then that of the nearest ancestor.
        (&["/bin/ssh", "/bin/git"], (bypass, Some(1), false)),
        (&["/bin/git", "/bin/ssh"], (tunnel, Some(1), false)),
        (
            &["/bin/curl", "/bin/ssh", "/bin/git"],
            (bypass, Some(1), true),
        ),
        (
            &["/bin/curl", "/bin/git", "/bin/ssh"],
            (tunnel, Some(1), true),
        ),
    ] {
        assert_eq!(judge(&rules, paths), expected, "{paths:?}");
    }
    rules.children = Children::Own;
    let paths = ["/bin/curl", "/bin/git"];
    assert_eq!(judge(&rules, &paths), (bypass, None, false));
    // Rules for a user or a control group are not inherited.
    let rules = super::tests::rules("cgroup:app.slice, uid:1000", "");
    let other = Process {
        uid: 0,
        cgroup: b"/",
        ..process("/bin/curl", "")
    };
    let parent = process("/bin/git", "/app.slice");
    assert_eq!(
        rules.decide_with_ancestors(&other, [parent]).decision,
        bypass
    );
}

#[test]
fn symbolic_links_match_their_target() {
    let mut rules = rules("firefox, curl", "");
    rules.follow_links(|application| {
        let target = application.to_string() == "firefox";
        target.then(|| self::application("/usr/lib/firefox-esr/firefox-esr"))
    });
    let decide = |path| rules.decide(&process(path, "/")).1.map(|rule| rule.line);
    assert_eq!(decide("/usr/lib/firefox-esr/firefox-esr"), Some(1));
    assert_eq!(decide("/bin/firefox-esr"), None);
    assert_eq!(decide("/bin/curl"), Some(2));
}

#[test]
fn users_are_looked_up() {
    let mut rules = rules("uid:alice, uid:7", "uid:bob, x");
    let known = |name: &str| (name == "alice").then_some(1000);
    let unknown = rules.resolve_users(known).unwrap_err();
    assert_eq!((&*unknown.name, unknown.line), ("bob", 1));
    assert_eq!(rules.allowed[0].application, application("uid:1000"));
    assert_eq!(rules.decide(&process("/bin/y", "/")).0, Decision::Tunnel);
    assert!(rules.resolve_users(|_| Some(2)).is_ok());
    assert_eq!(rules.disallowed[0].application, application("uid:2"));
    rules.of_user = Some(AppsOfUser {
        user: User::Name("carol".to_owned()),
        line: 9,
    });
    let unknown = rules.resolve_users(|_| None).unwrap_err();
    assert_eq!((&*unknown.name, unknown.line), ("carol", 9));
    assert!(rules.resolve_users(|_| Some(3)).is_ok());
    assert_eq!(rules.of_user.map(|only| only.user), Some(User::Id(3)));
}

#[test]
fn rules_of_one_user_decide_about_no_other() {
    let (tunnel, bypass) = (Decision::Tunnel, Decision::Bypass);
    let git = process("/bin/git", "/");
    let by_git = process("/bin/curl", "/");
    let by_uid = process("/bin/ssh", "/");
    for (allowed, disallowed) in [("git, uid:1000, uid:1001, /", ""), ("", "x"), ("", "")] {
        for (only, expected) in [(None, tunnel), (Some(1000), tunnel), (Some(1001), bypass)] {
            let rules = AppRules {
                of_user: only.map(|id| AppsOfUser {
                    user: User::Id(id),
                    line: 1,
                }),
                ..rules(allowed, disallowed)
            };
            for process in [git, by_git, by_uid] {
                let verdict = rules.decide_with_ancestors(&process, [git]);
                assert_eq!(verdict.decision, expected, "{rules:?} {process:?}");
                assert_eq!(verdict.is_of_other_user, expected == bypass);
                assert!(expected == tunnel || verdict.rule.is_none());
                assert_eq!(rules.decide(&process).0, expected);
            }
        }
    }
    // A process inherits from another user's process: its own user counts.
    let rules = AppRules {
        of_user: Some(AppsOfUser {
            user: User::Id(1000),
            line: 1,
        }),
        ..rules("git", "")
    };
    let git_of_root = Process { uid: 0, ..git };
    let by_root = Process { uid: 0, ..by_git };
    let verdict = |process, parent| rules.decide_with_ancestors(process, [parent]).decision;
    assert_eq!(verdict(&by_git, git_of_root), tunnel);
    assert_eq!(verdict(&by_root, git), bypass);
    // A name that nobody has resolved is nobody's.
    let unknown = AppRules {
        of_user: Some(AppsOfUser {
            user: User::Name("alice".to_owned()),
            line: 1,
        }),
        ..rules
    };
    assert_eq!(unknown.decide(&git).0, bypass);
}

/// Texts that are applications, or nearly so.
fn text() -> impl Strategy<Value = String> {
    let spans = prop::sample::select(vec![
        "a",
        "b",
        "A",
        "/",
        "/",
        "*",
        ".exe",
        ".",
        "..",
        " ",
        ":",
        ";",
        "\\",
        "é",
        "exe:",
        "dir:",
        "name:",
        "cgroup:",
        "uid:",
        "flatpak:",
        "snap:",
        "7",
        "-",
        "_",
        "app-flatpak-",
        "snap.",
        "\t",
        "#",
    ]);
    prop::collection::vec(spans, 0..7).prop_map(|spans| spans.concat())
}

/// Components of paths that such applications match.
fn part() -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop::sample::select(vec!["a", "b", "A", ".exe", ".x", "7"]),
        1..4,
    )
    .prop_map(|spans| spans.concat())
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(part(), 1..4).prop_map(|parts| format!("/{}", parts.join("/")))
}

proptest! {
    #[test]
    fn printed_applications_read_back(text in text()) {
        if let Ok(application) = text.parse::<Application>() {
            let printed = application.to_string();
            prop_assert!(!printed.contains([',', '#', '"', '\'', '\n']));
            prop_assert_eq!(printed.trim(), &printed);
            prop_assert_eq!(printed.parse::<Application>(), Ok(application));
        }
    }

    #[test]
    fn any_text(text in "\\PC*") {
        if let Ok(application) = text.parse::<Application>() {
            prop_assert_eq!(application.to_string().parse::<Application>(), Ok(application));
        }
    }

    #[test]
    fn covered_applications_match(
        wide in text(), narrow in text(), path in path(), cgroup in path(),
    ) {
        let (Ok(wide), Ok(narrow)) = (wide.parse::<Application>(), narrow.parse::<Application>()) else {
            return Ok(());
        };
        prop_assert!(wide.covers(&wide));
        let process = process(&path, &cgroup);
        if wide.covers(&narrow) && narrow.matches(&process) {
            prop_assert!(wide.matches(&process), "{} {}", wide, narrow);
        }
    }

    /// Checks one list against rules that are tried in turn.
    #[test]
    fn decisions_follow_the_table(
        allowed in prop::collection::vec(path(), 0..4),
        disallowed in prop::collection::vec(path(), 0..4),
        path in path(),
    ) {
        let list = |paths: &[String]| -> Vec<Rule> {
            let rules = paths.iter().enumerate();
            rules.map(|(line, path)| Rule::new(application(path), line)).collect()
        };
        let rules = AppRules {
            allowed: list(&allowed),
            disallowed: list(&disallowed),
            ..AppRules::default()
        };
        let expected = match (allowed.contains(&path), disallowed.contains(&path)) {
            (true, _) => Decision::Tunnel,
            (false, true) => Decision::Bypass,
            (false, false) if allowed.is_empty() => Decision::Tunnel,
            (false, false) => Decision::Bypass,
        };
        let process = process(&path, "/");
        let (decision, rule) = rules.decide(&process);
        prop_assert_eq!(decision, expected);
        prop_assert_eq!(rule.is_some(), allowed.contains(&path) || disallowed.contains(&path));
    }
}
