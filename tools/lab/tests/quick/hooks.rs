//! Commands of the file after the device was killed.

use crate::closed::kill_device;
use crate::state::State;
use crate::{BEYOND, World};
use taupe_lab::{Result, ensure};

/// A kill switch from common guides: the command queries the device's mark.
const SWITCH: &str = "rule add not fwmark $(wg show %i fwmark) prohibit pref 100";

/// Commands that query the killed device still remove the changes of PostUp: those of `down`, and
/// those of a second `up`, after which the rule exists once.
pub(crate) fn after_a_kill() -> Result<()> {
    let world = World::new()?;
    let undo = SWITCH.replace(" add ", " delete ");
    for phase in ["PreDown", "PostDown"] {
        let file = world.file(
            &format!("PostUp = ip {SWITCH}\n{phase} = ip {undo}"),
            "AllowedIPs = 0.0.0.0/0",
        )?;
        let before = State::of(&world.near)?;
        world.up(&file)?;
        let first = State::of(&world.near)?;
        kill_device(&world)?;
        world.up(&file)?;
        let left = first.difference(&State::of(&world.near)?);
        ensure!(left.is_empty(), "{phase}: the second up differs:\n{left}");
        kill_device(&world)?;
        world.down(&file)?;
        let left = before.difference(&State::of(&world.near)?);
        ensure!(left.is_empty(), "{phase}: down left:\n{left}");
        ensure!(world.answers(BEYOND[0])?, "{phase}: the machine is offline");
    }
    Ok(())
}
