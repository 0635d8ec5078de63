//! Notes about the plan of a tunnel, with the options of this program that help.

use taupe_config::plan_note::{PlanNote, Remedy};

/// Returns a note with the option or key after which it no longer applies.
pub(crate) fn with_remedy(note: &PlanNote) -> String {
    let PlanNote { sentence, remedy } = note;
    match remedy {
        None => sentence.clone(),
        Some(Remedy::Override) => format!("{sentence}; --override-routes tunnels it"),
        Some(Remedy::Exclude) => {
            format!("{sentence}; DisallowedIPs keeps them out of the tunnel knowingly")
        }
        Some(Remedy::OverrideOrExclude) => format!(
            "{sentence}; --override-routes tunnels them, DisallowedIPs keeps them out of the \
             tunnel knowingly"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_about_routes_name_the_option_that_tunnels_them() {
        let shown = |remedy| {
            let sentence = "10.0.0.0/8 is not tunnelled".to_owned();
            with_remedy(&PlanNote { sentence, remedy })
        };
        assert_eq!(shown(None), "10.0.0.0/8 is not tunnelled");
        for remedy in [Remedy::Override, Remedy::OverrideOrExclude] {
            let text = shown(Some(remedy));
            assert!(
                text.contains("tunnelled; --override-routes tunnels"),
                "{text}"
            );
        }
        let text = shown(Some(Remedy::Exclude));
        assert!(!text.contains("--override-routes"), "{text}");
    }
}
