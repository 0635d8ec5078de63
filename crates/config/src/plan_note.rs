//! Notes for the user about the plan of a tunnel.

/// A note about the plan of a tunnel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanNote {
    /// One sentence.
    pub sentence: String,
    /// The change after which the note no longer applies, if there is one.
    pub remedy: Option<Remedy>,
}

/// A change of the request or of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// The option that overrides routes tunnels the network.
    Override,
    /// `DisallowedIPs` declare that the destinations bypass the tunnel.
    Exclude,
    /// [`Self::Override`], or else [`Self::Exclude`].
    OverrideOrExclude,
}

impl From<String> for PlanNote {
    fn from(sentence: String) -> Self {
        let remedy = None;
        Self { sentence, remedy }
    }
}
