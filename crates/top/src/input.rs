//! Keys and their actions.

use crate::model::{Action, Mode, Place, Screen, Step};
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// Returns the action of a key. `None` if it has none.
pub(crate) fn action(key: KeyEvent, mode: &Mode) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Some(Action::Quit),
            KeyCode::Char('z') => Some(Action::Suspend),
            KeyCode::Char('l') => Some(Action::Redraw),
            // Some terminals send this for Backspace.
            KeyCode::Char('h') if *mode == Mode::Filter => Some(Action::Erase),
            _ => None,
        };
    }
    if key.modifiers.contains(KeyModifiers::ALT) {
        return None;
    }
    match mode {
        Mode::Browse => browsing(key.code),
        Mode::Filter => match key.code {
            KeyCode::Char(c) => Some(Action::Type(c)),
            KeyCode::Backspace => Some(Action::Erase),
            code => accept_or_cancel(code),
        },
        Mode::Help => match key.code {
            KeyCode::Char('q' | '?') | KeyCode::Esc | KeyCode::Enter => Some(Action::Cancel),
            _ => None,
        },
        Mode::Choose { .. } => match key.code {
            KeyCode::Char('q') => Some(Action::Cancel),
            KeyCode::Char(c) => Some(Action::Type(c)),
            code => accept_or_cancel(code),
        },
        Mode::Confirm(_) => match key.code {
            KeyCode::Char('y') => Some(Action::Accept),
            KeyCode::Char('n' | 'q') => Some(Action::Cancel),
            code => accept_or_cancel(code),
        },
    }
}

const fn accept_or_cancel(code: KeyCode) -> Option<Action> {
    match code {
        KeyCode::Enter => Some(Action::Accept),
        KeyCode::Esc => Some(Action::Cancel),
        _ => None,
    }
}

const fn browsing(code: KeyCode) -> Option<Action> {
    Some(match code {
        KeyCode::Char('q') => Action::Quit,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => Action::Help,
        KeyCode::Char('1') => Action::Show(Screen::Overview),
        KeyCode::Char('2') => Action::Show(Screen::Peers),
        KeyCode::Char('3') => Action::Show(Screen::Applications),
        KeyCode::Char('4') => Action::Show(Screen::Drops),
        KeyCode::Char('5') => Action::Show(Screen::Connections),
        KeyCode::Tab | KeyCode::Right => Action::NextScreen,
        KeyCode::BackTab | KeyCode::Left => Action::PreviousScreen,
        KeyCode::Up | KeyCode::Char('k') => Action::Step(Step::Up),
        KeyCode::Down | KeyCode::Char('j') => Action::Step(Step::Down),
        KeyCode::PageUp => Action::Step(Step::PageUp),
        KeyCode::PageDown => Action::Step(Step::PageDown),
        KeyCode::Home | KeyCode::Char('g') => Action::Step(Step::First),
        KeyCode::End | KeyCode::Char('G') => Action::Step(Step::Last),
        KeyCode::Char('a') => Action::Move(Place::Allowed),
        KeyCode::Char('d') => Action::Move(Place::Disallowed),
        KeyCode::Char('x') | KeyCode::Delete => Action::Move(Place::Nowhere),
        KeyCode::Char('s') => Action::Sort,
        KeyCode::Char('r') => Action::Reverse,
        KeyCode::Char('/') => Action::BeginFilter,
        KeyCode::Char('p' | ' ') => Action::Pause,
        KeyCode::Esc => Action::Cancel,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Change;

    fn press(code: KeyCode, mode: &Mode) -> Option<Action> {
        action(KeyEvent::new(code, KeyModifiers::NONE), mode)
    }

    fn control(c: char, mode: &Mode) -> Option<Action> {
        action(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL), mode)
    }

    #[test]
    fn letters_are_commands_only_outside_prompts() {
        let change = Change {
            tunnel: "home".into(),
            entry: "curl".into(),
            place: Place::Disallowed,
        };
        let q = KeyCode::Char('q');
        assert_eq!(press(q, &Mode::Browse), Some(Action::Quit));
        assert_eq!(press(q, &Mode::Filter), Some(Action::Type('q')));
        assert_eq!(press(q, &Mode::Help), Some(Action::Cancel));
        let confirm = Mode::Confirm(change);
        assert_eq!(press(q, &confirm), Some(Action::Cancel));
        assert_eq!(press(KeyCode::Enter, &confirm), Some(Action::Accept));
        assert_eq!(press(KeyCode::Char('d'), &confirm), None);
        // The end by Ctrl-C works everywhere.
        for mode in [Mode::Browse, Mode::Filter, Mode::Help, confirm] {
            assert_eq!(control('c', &mode), Some(Action::Quit));
            assert_eq!(control('z', &mode), Some(Action::Suspend));
            assert_eq!(control('x', &mode), None);
        }
    }
}
