use super::{any_order, plain_up, refusal, tunnel};
use crate::arguments::{
    Action, AppAction, AppOrder, AppPlace, DoctorOrder, ExplainOrder, FlowsOrder, Order,
    ReportOrder, StatusOrder, Up,
};
use std::time::Duration;
use taupe_config::application::Application;
use taupe_inspect::destination::Destination;

#[test]
fn applications_are_selected_for_one_file() {
    let applications: Vec<Application> = ["curl", "/opt/games/"]
        .map(|text| text.parse().expect("an application"))
        .into();
    for (word, place) in [
        ("allow", AppPlace::Allowed),
        ("deny", AppPlace::Disallowed),
        ("remove", AppPlace::Nowhere),
    ] {
        let order = any_order(&format!("taupe app {word} home curl /opt/games/"), &[]);
        let action = AppAction::Edit(place, applications.clone());
        let file = "home".into();
        assert_eq!(order, Order::App(AppOrder { file, action }));
    }
    let list = Order::App(AppOrder {
        file: "home".into(),
        action: AppAction::List { json: false },
    });
    assert_eq!(any_order("taupe app list home", &[]), list);
    for (line, part) in [
        ("taupe app allow home", "APP"),
        ("taupe app allow home ./curl", "does not begin with /"),
        ("taupe app home", "home"),
    ] {
        let (text, _) = refusal(line, &[]);
        assert!(text.contains(part), "{line}: {text}");
    }
}

#[test]
fn a_destination_is_an_address_with_or_without_a_port() {
    for (text, address, port) in [
        ("192.0.2.1", "192.0.2.1", None),
        ("192.0.2.1:53", "192.0.2.1", Some(53)),
        ("2001:db8::1", "2001:db8::1", None),
        ("[2001:db8::1]", "2001:db8::1", None),
        ("[2001:db8::1]:53", "2001:db8::1", Some(53)),
    ] {
        let order = any_order(&format!("taupe explain --conf home curl {text}"), &[]);
        let address = address.parse().expect("an address");
        let expected = Order::Explain(ExplainOrder {
            file: Some("home".into()),
            application: Some("curl".into()),
            destination: Some(Destination { address, port }),
            json: false,
        });
        assert_eq!(order, expected, "{text}");
    }
    let (text, _) = refusal("taupe explain curl example.org", &[]);
    assert!(text.contains("`getent ahosts example.org`"), "{text}");
    let (text, _) = refusal("taupe explain curl https://example.org:443/x", &[]);
    assert!(text.contains("`getent ahosts example.org`"), "{text}");
    for wrong in ["192.0.2.256", "192.0.2.1:x:y", "fe80::g"] {
        let (text, _) = refusal(&format!("taupe explain curl {wrong}"), &[]);
        assert!(text.contains("write one such as 198.51.100.1"), "{text}");
    }
    for line in [
        "taupe explain",
        "taupe explain --conf home",
        "taupe explain x --forwarded",
    ] {
        let (text, _) = refusal(line, &[]);
        assert!(text.contains("APP|PID"), "{line}: {text}");
    }
    let explain = |application: Option<&str>, destination| {
        Order::Explain(ExplainOrder {
            file: None,
            application: application.map(Into::into),
            destination,
            json: false,
        })
    };
    let destination = Some(Destination {
        address: "192.0.2.1".parse().expect("an address"),
        port: None,
    });
    for (line, order) in [
        ("taupe explain 4711", explain(Some("4711"), None)),
        ("taupe explain --forwarded", explain(None, None)),
        (
            "taupe explain --forwarded 192.0.2.1",
            explain(None, destination),
        ),
    ] {
        assert_eq!(any_order(line, &[]), order, "{line}");
    }
}

#[test]
fn keep_closed_and_reset_existing_are_read() {
    let down = Action::Down {
        no_save: false,
        keep_closed: true,
    };
    let order = any_order("taupe down --keep-closed home", &[]);
    assert_eq!(order, tunnel(down, "home"));
    let up = Action::Up(Up {
        foreground: true,
        keep_closed: true,
        reset_existing: true,
        ..plain_up()
    });
    let line = "taupe up -f --keep-closed --reset-existing home";
    assert_eq!(any_order(line, &[]), tunnel(up, "home"));
    for line in [
        "taupe up --keep-closed home",
        "taupe up --adapter --reset-existing home",
    ] {
        refusal(line, &[]);
    }
}

#[test]
fn diagnosis_commands_have_options_for_file_and_json() {
    let home = || Some("home".into());
    let plain = StatusOrder {
        file: None,
        json: false,
        all_peers: false,
        watch: None,
    };
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let with = |change: fn(&mut StatusOrder)| {
        let mut order = plain.clone();
        change(&mut order);
        order
    };
    for (line, order) in [
        ("taupe status", plain.clone()),
        (
            "taupe status home",
            with(|it| it.file = Some("home".into())),
        ),
        ("taupe status --json", with(|it| it.json = true)),
        ("taupe status --peers", with(|it| it.all_peers = true)),
    ] {
        assert_eq!(any_order(line, &[]), Order::Status(order), "{line}");
    }
    for (line, watch) in [
        ("taupe status --watch", seconds(1)),
        ("taupe status --watch=60", seconds(60)),
    ] {
        let order = Order::Status(StatusOrder {
            watch,
            ..plain.clone()
        });
        assert_eq!(any_order(line, &[]), order, "{line}");
    }
    refusal("taupe status --watch=0", &[]);
    let flows = Order::Flows(FlowsOrder {
        file: home(),
        json: true,
        follow: true,
    });
    assert_eq!(any_order("taupe flows home --follow --json", &[]), flows);
    let doctor = Order::Doctor(DoctorOrder {
        file: home(),
        json: false,
        fresh: false,
    });
    assert_eq!(any_order("taupe doctor home", &[]), doctor);
    let report = Order::Report(ReportOrder {
        file: None,
        output: Some("bug.md".into()),
        hide_endpoints: true,
    });
    assert_eq!(
        any_order("taupe report -o bug.md --hide-endpoints", &[]),
        report
    );
}
