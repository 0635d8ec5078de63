//! Frames of all screens, compared with files in the folder `screens`.
//!
//! `UPDATE_SCREENS=1 cargo test -p taupe-top` writes the files.

use super::*;
use crate::examples::{hostile, reading};
use crate::input::action;
use crate::model::{Change, Effect};
use crate::reading::Reading;
use crate::text::Text;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use proptest::prelude::*;
use ratatui_core::backend::TestBackend;
use ratatui_core::style::Color;
use ratatui_core::terminal::Terminal;
use std::path::Path;
use std::time::Duration;

const PLAIN: Palette = Palette { is_coloured: false };

fn empty() -> Model {
    let without = "no tunnel is up; `taupe up` brings one up";
    Model::new(Duration::from_secs(1), Text::new(without))
}

/// A model after a minute.
fn model() -> Model {
    let mut model = empty();
    for second in 0..60 {
        model.update(Ok(reading(second)));
    }
    model
}

fn press(model: &mut Model, keys: &str) -> Effect {
    let mut effect = Effect::None;
    for c in keys.chars() {
        let code = match c {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '↓' => KeyCode::Down,
            '⇞' => KeyCode::PageUp,
            '⇟' => KeyCode::PageDown,
            c => KeyCode::Char(c),
        };
        let key = KeyEvent::new(code, KeyModifiers::NONE);
        if let Some(action) = action(key, &model.mode) {
            effect = model.act(action);
        }
    }
    effect
}

fn drawn(model: &mut Model, width: u16, height: u16, palette: Palette) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, palette)).unwrap();
    terminal
}

/// Returns the lines of a frame. The selected row begins with `>`.
fn text(model: &mut Model, width: u16, height: u16) -> String {
    let terminal = drawn(model, width, height, PLAIN);
    let buffer = terminal.backend().buffer();
    let line = |y: u16| {
        let cells = (0..width).map(|x| &buffer[(x, y)]);
        let line: String = cells.clone().map(|cell| cell.symbol()).collect();
        let is_selected = |cell: &&ratatui_core::buffer::Cell| {
            let modifier = cell.modifier;
            modifier.contains(ratatui_core::style::Modifier::REVERSED)
        };
        match cells.clone().next().filter(is_selected) {
            Some(_) => format!(">{}\n", line.trim_end().get(1..).unwrap_or_default()),
            None => format!("{}\n", line.trim_end()),
        }
    };
    (0..height).map(line).collect()
}

fn compare(name: &str, found: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("screens");
    let file = folder.join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_SCREENS").is_some() {
        std::fs::write(file, found).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == expected,
        "{} differs from the frame:\n{found}",
        file.display()
    );
}

#[test]
fn screens_are_as_in_their_files() {
    for (name, keys) in [
        ("overview", ""),
        ("peers", "2↓"),
        ("applications", "3"),
        ("drops", "4"),
        ("connections", "5↓"),
        ("help", "?"),
        ("filter", "3/ssh"),
        ("confirm", "3d"),
        ("sorted", "5sr"),
        ("paused", "p"),
    ] {
        let mut model = model();
        press(&mut model, keys);
        compare(name, &text(&mut model, 80, 24));
    }
    compare("wide", &text(&mut model(), 132, 40));
    let mut narrow = model();
    press(&mut narrow, "3");
    compare("narrow", &text(&mut narrow, 60, 16));
    compare("too-small", &text(&mut model(), 59, 24));
    compare("before-the-first-reading", &text(&mut empty(), 80, 24));
    let mut nothing = empty();
    nothing.update(Ok(Reading::default()));
    compare("nothing-up", &text(&mut nothing, 80, 24));
    let mut failed = model();
    failed.update(Err(Text::new("the maps of home cannot be read")));
    compare("failed", &text(&mut failed, 80, 24));
}

#[test]
fn the_guide_shows_the_overview() {
    let guide = include_str!("../../../../docs/guide/live-view.md");
    let overview = text(&mut model(), 80, 24);
    assert!(guide.contains(overview.trim_end()), "{overview}");
}

#[test]
fn an_application_is_moved_after_a_question() {
    let mut model = model();
    press(&mut model, "3");
    // An entry selects the application already.
    assert_eq!(press(&mut model, "a"), Effect::None);
    assert!(text(&mut model, 80, 24).contains("home already selects it"));
    let deny = Change {
        tunnel: "home".into(),
        entry: "firefox-esr".into(),
        place: crate::model::Place::Disallowed,
    };
    assert_eq!(press(&mut model, "d"), Effect::None);
    assert_eq!(press(&mut model, "\x1b"), Effect::None);
    assert_eq!(press(&mut model, "d\n"), Effect::Apply(deny));
    // One change at a time.
    assert_eq!(press(&mut model, "d\n"), Effect::None);
    assert!(text(&mut model, 80, 24).contains("taupe app deny home firefox-esr …"));
    model.changed(Err(Text::new("home.conf: it would have no AllowedApps")));
    assert!(text(&mut model, 80, 24).contains("it would have no AllowedApps"));
    let allow = Change {
        tunnel: "home".into(),
        entry: "/usr/bin/ssh".into(),
        place: crate::model::Place::Allowed,
    };
    assert_eq!(press(&mut model, "/ssh\na\n"), Effect::Apply(allow));
}

#[test]
fn one_of_several_tunnels_is_chosen() {
    let mut model = empty();
    let mut both = reading(0);
    for tunnel in &mut both.tunnels {
        tunnel.selects = true;
    }
    model.update(Ok(both));
    press(&mut model, "3/ssh\na");
    assert!(text(&mut model, 80, 24).contains("1 home, 2 office"));
    assert_eq!(press(&mut model, "3\n"), Effect::None);
    let Effect::Apply(change) = press(&mut model, "2\n") else {
        panic!("it is confirmed");
    };
    assert_eq!(change.tunnel, "office");
    model.changed(Ok(Text::new("done")));
    // Only a tunnel with an entry can lose it.
    assert_eq!(press(&mut model, "x"), Effect::None);
    assert!(text(&mut model, 80, 24).contains("no tunnel applies: "));
}

#[test]
fn the_selected_row_stays_selected() {
    let mut model = model();
    press(&mut model, "3s");
    let line = |model: &mut Model| {
        let text = text(model, 80, 24);
        let line = text.lines().find(|line| line.starts_with('>')).unwrap();
        line.to_owned()
    };
    assert!(line(&mut model).contains("/usr/bin/ssh"));
    press(&mut model, "↓");
    let before = line(&mut model);
    press(&mut model, "s");
    assert_eq!(line(&mut model), before);
    press(&mut model, "r");
    assert_eq!(line(&mut model), before);
    let mut without = reading(60);
    without.connections.clear();
    without.tunnels.clear();
    model.update(Ok(without));
    assert!(!text(&mut model, 80, 24).contains('>'));
}

#[test]
fn pages_show_all_rows() {
    let mut model = empty();
    model.update(Ok(hostile("x", 100)));
    press(&mut model, "5");
    let all = text(&mut model, 80, 24);
    assert!(all.contains("1 of 104"), "{all}");
    press(&mut model, "⇟");
    let next = text(&mut model, 80, 24);
    assert!(next.contains("18 of 104"), "{next}");
    press(&mut model, "G");
    assert!(text(&mut model, 80, 24).contains("104 of 104"));
    press(&mut model, "⇞g");
    assert_eq!(text(&mut model, 80, 24), all);
}

#[test]
fn no_color_leaves_colours_out() {
    let colours = |palette: Palette| {
        let mut count = 0;
        for keys in ["1", "2", "3", "4", "5", "?"] {
            let mut model = model();
            press(&mut model, keys);
            let terminal = drawn(&mut model, 80, 24, palette);
            let cells = terminal.backend().buffer().content().iter();
            let coloured = |cell: &&ratatui_core::buffer::Cell| {
                cell.fg != Color::Reset || cell.bg != Color::Reset
            };
            count += cells.filter(coloured).count();
        }
        count
    };
    assert_eq!(colours(PLAIN), 0);
    assert!(colours(Palette { is_coloured: true }) > 100);
}

#[test]
fn no_size_panics() {
    let mut shown = [model(), empty()];
    shown[0].update(Ok(hostile("\x1b[31m漢字\u{202e}", 3)));
    for model in &mut shown {
        for keys in ["1", "2", "3", "4", "5", "3d", "\x1b?", "\x1b/x"] {
            press(model, keys);
            for height in (1..=60).step_by(3) {
                for width in (1..=200).step_by(17) {
                    drawn(model, width, height, PLAIN);
                }
            }
        }
    }
}

/// A cell of a frame holds no character that a terminal would execute.
fn is_harmless(symbol: &str) -> bool {
    !symbol.chars().any(char::is_control)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn hostile_texts_neither_panic_nor_reach_the_terminal(
        hostile_text in any::<String>(),
        control in "[\\x00-\\x1f\\x7f-\\x9f\u{200b}-\u{200f}\u{202a}-\u{202e}]{0,8}",
        width in 1_u16..=200,
        height in 1_u16..=60,
        keys in "[1-5adxsrp/?\n\x1b↓gG]{0,12}",
        rows in 0_u64..40,
    ) {
        let mut model = empty();
        let both = format!("{control}{hostile_text}");
        model.update(Ok(hostile(&both, rows)));
        model.update(Ok(hostile(&both, rows + 1)));
        model.update(Err(Text::new(&both)));
        press(&mut model, &keys);
        let terminal = drawn(&mut model, width, height, PLAIN);
        for cell in terminal.backend().buffer().content() {
            prop_assert!(is_harmless(cell.symbol()), "{:?}", cell.symbol());
        }
    }
}
