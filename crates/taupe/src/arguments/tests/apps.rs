use super::{any_order, plain_up, refusal, tunnel};
use crate::arguments::{
    Action, AppAction, AppOrder, AppPlace, Destination, ExplainOrder, Order, Up,
};
use taupe_config::application::Application;

#[test]
fn applications_are_chosen_for_one_file() {
    let applications: Vec<Application> = ["curl", "/opt/games/"]
        .map(|text| text.parse().expect("an application"))
        .into();
    for (word, place) in [
        ("allow", AppPlace::Allowed),
        ("deny", AppPlace::Disallowed),
        ("remove", AppPlace::Nowhere),
    ] {
        let order = any_order(&format!("taupe app {word} home curl /opt/games/"), &[]);
        let action = AppAction::Choose(place, applications.clone());
        let file = "home".into();
        assert_eq!(order, Order::App(AppOrder { file, action }));
    }
    let list = Order::App(AppOrder {
        file: "home".into(),
        action: AppAction::List,
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
        let order = any_order(&format!("taupe explain home --app curl --to {text}"), &[]);
        let address = address.parse().expect("an address");
        let expected = Order::Explain(ExplainOrder {
            file: "home".into(),
            application: Some("curl".into()),
            destination: Some(Destination { address, port }),
        });
        assert_eq!(order, expected, "{text}");
    }
    let (text, _) = refusal("taupe explain home --app curl --to example.org", &[]);
    assert!(text.contains("it is no address"), "{text}");
    for line in [
        "taupe explain home",
        "taupe explain home --app x --forwarded",
    ] {
        let (text, _) = refusal(line, &[]);
        assert!(text.contains("--app"), "{line}: {text}");
    }
    let forwarded = Order::Explain(ExplainOrder {
        file: "home".into(),
        application: None,
        destination: None,
    });
    assert_eq!(any_order("taupe explain home --forwarded", &[]), forwarded);
}

#[test]
fn the_lock_stays_closed_on_request() {
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
    let status = |file: Option<&str>| Order::Status {
        file: file.map(Into::into),
    };
    assert_eq!(any_order("taupe status", &[]), status(None));
    assert_eq!(any_order("taupe status home", &[]), status(Some("home")));
}
