//! The second step of confinement: a list of calls as a seccomp filter.

use crate::calls::CallList;
use crate::layer::{Layer, LayerState, LayerStatus};
use std::io;

/// The reaction to a call that the list does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnViolation {
    /// The call fails with `EPERM`, and the kernel logs it.
    Refuse,
    /// The kernel ends the process with SIGSYS, so that a test fails.
    Kill,
}

impl OnViolation {
    /// The variable that tests set.
    const VARIABLE: &str = "TAUPE_CONFINE";

    /// Returns the reaction that the environment asks for: `TAUPE_CONFINE=kill` ends the process.
    #[must_use]
    pub fn from_environment() -> Self {
        match std::env::var_os(Self::VARIABLE) {
            Some(word) if word == "kill" => Self::Kill,
            _ => Self::Refuse,
        }
    }
}

/// Restricts all threads of this process, and those that they start, to the calls of a list.
/// [`restrict_thread`](crate::restrict_thread) must have set `no_new_privs`.
pub fn restrict_calls(list: &CallList, on_violation: OnViolation) -> LayerStatus {
    let state = LayerState::of(apply(list, on_violation));
    LayerStatus::new(Layer::Calls, state)
}

/// Error of compiling or installing a list.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilterError {
    #[error("the kernel refuses it: {0}")]
    Kernel(#[from] io::Error),
    #[cfg(any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        target_arch = "riscv64"
    ))]
    #[error(transparent)]
    Compile(#[from] seccompiler::BackendError),
    #[cfg(not(any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        target_arch = "riscv64"
    )))]
    #[error("Taupe has no list of calls for this processor")]
    Processor,
}

#[cfg(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64"
))]
use compiled::apply;

#[cfg(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64"
))]
pub(crate) fn available() -> Result<(), FilterError> {
    Ok(taupe_os_linux::seccomp::check()?)
}

#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64"
)))]
pub(crate) fn available() -> Result<(), FilterError> {
    Err(FilterError::Processor)
}

#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64"
)))]
fn apply(_: &CallList, _: OnViolation) -> Result<(), FilterError> {
    Err(FilterError::Processor)
}

#[cfg(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64"
))]
mod compiled {
    use super::{FilterError, OnViolation};
    use crate::calls::{AllowedCall, CallList, Condition};
    use seccompiler::{
        BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
        SeccompFilter, SeccompRule, TargetArch,
    };
    use std::collections::BTreeMap;
    use taupe_os_linux::seccomp::{Instruction, install};

    /// Calls that fail with `ENOSYS`. The C library takes a missing `clone3` for an old kernel, and starts
    /// threads by `clone`, whose flags can be compared, because they are not in memory. By `uname` it
    /// asks for a domain in the name of this machine, and does without.
    const MISSING: [i64; 2] = [libc::SYS_clone3, libc::SYS_uname];

    pub(super) fn apply(list: &CallList, on_violation: OnViolation) -> Result<(), FilterError> {
        // The kernel runs both programs for each call, and takes the stricter action.
        install(&without_missing()?, false)?;
        install(&allowing(list, on_violation)?, true)?;
        Ok(())
    }

    fn without_missing() -> Result<Vec<Instruction>, BackendError> {
        let rules = MISSING.map(|number| (number, Vec::new())).into();
        let missing = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
        compile(rules, SeccompAction::Allow, missing)
    }

    fn allowing(
        list: &CallList,
        on_violation: OnViolation,
    ) -> Result<Vec<Instruction>, BackendError> {
        // The other program answers those that are missing.
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
            MISSING.map(|number| (number, Vec::new())).into();
        for call in list.calls() {
            rules
                .entry(call.number)
                .or_default()
                .extend(alternatives(call)?);
        }
        let refused = match on_violation {
            OnViolation::Refuse => SeccompAction::Errno(libc::EPERM.cast_unsigned()),
            OnViolation::Kill => SeccompAction::KillProcess,
        };
        compile(rules, refused, SeccompAction::Allow)
    }

    fn alternatives(call: &AllowedCall) -> Result<Vec<SeccompRule>, BackendError> {
        let rule = |conditions: &&[Condition]| {
            let conditions: Result<Vec<_>, _> = conditions.iter().map(condition).collect();
            SeccompRule::new(conditions?)
        };
        call.alternatives.iter().map(rule).collect()
    }

    fn condition(one: &Condition) -> Result<SeccompCondition, BackendError> {
        SeccompCondition::new(
            one.argument,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::MaskedEq(one.mask.into()),
            one.value.into(),
        )
    }

    /// Compiles a program. The kernel ends a process that makes a call of another architecture, such as
    /// a 32-bit call.
    fn compile(
        rules: BTreeMap<i64, Vec<SeccompRule>>,
        others: SeccompAction,
        listed: SeccompAction,
    ) -> Result<Vec<Instruction>, BackendError> {
        let processor = TargetArch::try_from(std::env::consts::ARCH)?;
        let filter = SeccompFilter::new(rules, others, listed, processor)?;
        let program = BpfProgram::try_from(filter)?;
        let instructions = program.iter().map(|one| Instruction {
            code: one.code,
            jt: one.jt,
            jf: one.jf,
            k: one.k,
        });
        Ok(instructions.collect())
    }

    #[cfg(test)]
    mod tests {
        use super::{allowing, without_missing};
        use crate::filter::OnViolation;
        use crate::lists;

        /// `BPF_MAXINSNS` of `linux/bpf_common.h`.
        const MOST: usize = 4096;

        #[test]
        fn every_list_compiles() {
            assert!(without_missing().expect("compiles").len() < 20);
            for list in lists::ALL {
                for reaction in [OnViolation::Refuse, OnViolation::Kill] {
                    let program = allowing(list, reaction).expect(list.process);
                    assert!(program.len() < MOST, "{}", program.len());
                }
            }
        }
    }
}
