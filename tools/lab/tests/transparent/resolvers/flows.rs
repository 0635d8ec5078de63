//! `flows`: connections to resolvers on this machine.

use std::time::Duration;

use serde_json::Value;
use taupe_lab::process::wait_until;
use taupe_lab::{Error, Result, ensure};

use super::{ALIASES, STUB, Scene};
use crate::world::{Application, SERVER, succeeded};

/// `flows` shows the server that an application has asked, not the address to which the question
/// was sent.
pub(crate) fn with_the_server_asked() -> Result<()> {
    let scene = Scene::new(&format!("nameserver {STUB}\n"))?;
    let world = &scene.world;
    let holder = Application::new("mole-holds")?;
    let file = scene.file(&SERVER.join(", "), "AllowedApps = mole-holds")?;
    world.up(&file)?;
    let script = format!(
        "exec 3<>/dev/tcp/{}/53 4<>/dev/udp/{STUB}/53 5<>/dev/udp/::1/53; \
         printf question >&4; printf question >&5; echo ready; sleep 300 3>&- 4>&- 5>&-; :",
        ALIASES[0]
    );
    let process = world.near.spawn(&[&holder.0, "-c", &script])?;
    wait_until("the questions", Duration::from_secs(30), || {
        Ok(process.output().contains("ready"))
    })?;
    let result = world.taupe(&["flows", "--json"])?;
    succeeded("flows", &result)?;
    let all: Value = serde_json::from_str(&result.stdout)
        .map_err(|error| Error::unmet(format!("{error}: {result:?}")))?;
    let flows = all["flows"].as_array().map_or(&[][..], Vec::as_slice);
    let mut own: Vec<(&str, &str)> = flows
        .iter()
        .filter(|flow| flow["pid"] == process.id() && flow["verdict"] == "tunnel")
        .filter_map(|flow| Some((flow["protocol"].as_str()?, flow["remote"].as_str()?)))
        .collect();
    own.sort_unstable();
    let alias = format!("{}:53", ALIASES[0]);
    let stub = format!("{STUB}:53");
    let wanted = [("tcp", &*alias), ("udp", &*stub), ("udp", "[::1]:53")];
    ensure!(own == wanted, "{own:?}: {all}");
    let counted = flows.iter().filter(|flow| {
        flow["pid"] == process.id() && flow["protocol"] == "udp" && flow["sent_bytes"] == 8
    });
    ensure!(counted.count() == 2, "bytes: {all}");
    let text = world.taupe(&["flows", "home"])?;
    succeeded("flows", &text)?;
    for part in [&alias, &stub] {
        ensure!(
            text.stdout.contains(&format!("-> {part},")),
            "{part}: {}",
            text.stdout
        );
    }
    world.down(&file)
}
