//! Commands of the file, after the device was killed.

use crate::closed::kill_device;
use crate::state::State;
use crate::{BEYOND, World};
use taupe_lab::{Result, ensure};

/// A kill switch of one's own, as guides have it: it asks for the device's mark.
const SWITCH: &str = "rule add not fwmark $(wg show %i fwmark) prohibit pref 100";

/// What PostUp has added is removed by commands that ask for the same, although nobody is
/// there to be asked: by `down`, and by a second `up`, after which it is there once.
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
