//! Orders and filter of tables.

use super::rates::rank;
use super::{Screen, Tables};
use std::cmp::Reverse;

/// Returns the names of a screen's orders; the first is the usual one.
pub(super) const fn names(screen: Screen) -> &'static [&'static str] {
    match screen {
        Screen::Overview => &[],
        Screen::Peers => &["rate", "name", "handshake"],
        Screen::Applications => &["rate", "name", "path", "connections"],
        Screen::Drops => &["rate", "total", "reason"],
        Screen::Connections => &["rate", "application", "path", "remote"],
    }
}

/// Returns the rows of a screen's table that contain the lower-case `filter`, in an order.
pub(super) fn sorted(tables: &Tables, screen: Screen, sort: usize, filter: &str) -> Vec<usize> {
    match screen {
        Screen::Overview => (0..tables.tunnels.len()).collect(),
        Screen::Peers => peers(tables, sort, filter),
        Screen::Applications => applications(tables, sort, filter),
        Screen::Drops => drops(tables, sort, filter),
        Screen::Connections => connections(tables, sort, filter),
    }
}

/// Returns the indices of rows that contain the filter in one of their texts.
fn matching<T>(rows: &[T], filter: &str, texts: impl Fn(&T) -> String) -> Vec<usize> {
    let all = rows.iter().enumerate();
    let is_wanted = |row: &T| filter.is_empty() || texts(row).to_lowercase().contains(filter);
    all.filter(|(_, row)| is_wanted(row))
        .map(|(index, _)| index)
        .collect()
}

fn peers(tables: &Tables, sort: usize, filter: &str) -> Vec<usize> {
    let all = &tables.peers;
    let mut rows = matching(all, filter, |row| {
        let endpoint = row.endpoint.clone().unwrap_or_default();
        format!(
            "{} {} {endpoint} {}",
            row.shown(),
            row.tunnel,
            row.public_key
        )
    });
    // The indices are those of rows.
    let name = |index: &usize| all.get(*index).map(|row| (&row.tunnel, row.shown()));
    match sort {
        0 => rows.sort_by_key(|at| {
            let rate = all.get(*at).map(|row| rank(row.rate));
            (Reverse(rate), name(at))
        }),
        1 => rows.sort_by_key(name),
        _ => rows.sort_by_key(|at| {
            let age = all.get(*at).and_then(|row| row.age);
            (age.is_none(), age, name(at))
        }),
    }
    rows
}

fn applications(tables: &Tables, sort: usize, filter: &str) -> Vec<usize> {
    let all = &tables.applications;
    let mut rows = matching(all, filter, |row| format!("{} {}", row.shown, row.paths()));
    let name = |index: &usize| all.get(*index).map(|row| &row.key);
    match sort {
        0 => rows.sort_by_key(|at| {
            let row = all.get(*at);
            let total = row.map(|row| (rank(row.rate), row.connections > 0, rank(row.total)));
            (Reverse(total), name(at))
        }),
        1 => rows.sort_by_key(name),
        2 => rows.sort_by_key(|at| (all.get(*at).map(|row| row.paths()), name(at))),
        _ => rows.sort_by_key(|at| {
            let count = all.get(*at).map(|row| row.connections);
            (Reverse(count), name(at))
        }),
    }
    rows
}

fn drops(tables: &Tables, sort: usize, filter: &str) -> Vec<usize> {
    let all = &tables.drops;
    let mut rows = matching(all, filter, |row| format!("{} {}", row.reason, row.tunnel));
    let name = |index: &usize| all.get(*index).map(|row| (&row.reason, &row.tunnel));
    match sort {
        0 => rows.sort_by_key(|at| {
            let row = all.get(*at).map(|row| (row.rate, row.count));
            (Reverse(row), name(at))
        }),
        1 => rows.sort_by_key(|at| (Reverse(all.get(*at).map(|row| row.count)), name(at))),
        _ => rows.sort_by_key(name),
    }
    rows
}

fn connections(tables: &Tables, sort: usize, filter: &str) -> Vec<usize> {
    let all = &tables.connections;
    let mut rows = matching(all, filter, |row| {
        let application = row.application.clone().unwrap_or_default();
        let remote = row.remote.map(|remote| remote.to_string());
        let remote = remote.unwrap_or_default();
        format!("{application} {remote} {}", row.path.word())
    });
    let name = |index: &usize| {
        let row = all.get(*index);
        row.map(|row| (&row.application, row.remote, row.local))
    };
    match sort {
        0 => rows.sort_by_key(|at| {
            let row = all.get(*at).map(|row| (rank(row.rate), rank(row.total)));
            (Reverse(row), name(at))
        }),
        1 => rows.sort_by_key(name),
        2 => rows.sort_by_key(|at| (all.get(*at).map(|row| &row.path), name(at))),
        _ => rows.sort_by_key(|at| (all.get(*at).map(|row| row.remote), name(at))),
    }
    rows
}
