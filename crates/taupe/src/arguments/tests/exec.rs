use super::{any_order, refusal};
use crate::arguments::{ExecOrder, Order, SandboxOrder};

fn exec(line: &str) -> ExecOrder {
    match any_order(line, &[]) {
        Order::Exec(order) => order,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn exec_uses_a_new_tunnel_or_joins_a_running_one() {
    for (line, hide_session) in [
        ("taupe exec ./home.conf -- curl -v --join x", false),
        (
            "taupe exec --no-session-bus ./home.conf -- curl -v --join x",
            true,
        ),
    ] {
        let order = exec(line);
        let file = "./home.conf".into();
        assert_eq!(order.sandbox, SandboxOrder::New { file, hide_session });
        assert_eq!(order.command, ["curl", "-v", "--join", "x"]);
    }
    let order = exec("taupe exec --join home -- curl");
    let name = "home".into();
    assert_eq!(order.sandbox, SandboxOrder::Join { name });
}

#[test]
fn the_command_follows_two_dashes() {
    for (line, part) in [
        ("taupe exec home", "COMMAND"),
        ("taupe exec home --", "COMMAND"),
        ("taupe exec home curl", "unexpected argument 'curl'"),
        ("taupe exec -- curl", "CONF"),
        ("taupe exec --join home home -- curl", "--join"),
        ("taupe exec --join home --no-session-bus -- curl", "--join"),
    ] {
        let (text, _) = refusal(line, &[]);
        assert!(text.contains(part), "{line}: {text}");
    }
}
