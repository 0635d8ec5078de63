//! The help.

use super::paint::Canvas;
use ratatui_core::layout::Rect;

const KEYS: [(&str, &str); 11] = [
    ("1 to 5, Tab", "select a screen"),
    (
        "Up, Down, PgUp, PgDn",
        "select a row, or scroll the overview",
    ),
    ("a", "taupe app allow: the application uses the tunnel"),
    ("d", "taupe app deny: its traffic bypasses the tunnel"),
    ("x", "taupe app remove: deletes its entry from the file"),
    ("s, r", "sort by the next column; reverse"),
    ("/", "show only rows that contain a text; Esc ends that"),
    ("p", "pause, and continue"),
    ("Ctrl-L, Ctrl-Z", "draw again; suspend"),
    ("q, Ctrl-C", "quit"),
    ("?", "this help; Esc goes back"),
];

const READING: [&str; 8] = [
    "Peers 1/2: one of two peers has a session, a handshake within 180 s.",
    "Path: the tunnel's name; direct: outside every tunnel; blocked: no traffic.",
    "Rates: encrypted bytes per second for tunnels and peers, payload for",
    "applications. - is not known: UDP outside tunnels is not counted.",
    "History: both directions, one bar for each reading, the newest at the right.",
    "A connection that ends between two readings is missing in its application's",
    "rates. [!] marks what keeps a tunnel from being fully up, as in",
    "`taupe status`.",
];

pub(super) fn draw(canvas: &mut Canvas<'_>, area: Rect) {
    let palette = canvas.palette;
    let keys = KEYS.iter().map(|(key, meaning)| (*key, *meaning));
    let mut y = area.y;
    for (key, meaning) in keys {
        if y >= area.bottom() {
            return;
        }
        canvas.put(1, y, key, palette.key(), 21);
        canvas.put(
            23,
            y,
            meaning,
            palette.plain(),
            area.width.saturating_sub(23),
        );
        y += 1;
    }
    y += 1;
    for line in READING {
        if y >= area.bottom() {
            return;
        }
        canvas.put(1, y, line, palette.plain(), area.width.saturating_sub(1));
        y += 1;
    }
}
