//! The seccomp part: system calls.
//!
//! Three filters are installed, and of their verdicts the strictest holds: the hostile calls end the process, the absent
//! ones fail with ENOSYS, and all that is not allowed fails with EPERM.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

use crate::Profile;
use crate::calls::{
    ABSENT, Argument, BOUND, BOUND_READING, BOUND_SERVING, Conditional, FREE, HOSTILE, Must,
    READING, SERVING,
};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Installs the filters for all threads.
pub fn install(profile: Profile) -> Result<(), String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    let programs = programs(profile, arch).map_err(|error| error.to_string())?;
    for program in &programs {
        seccompiler::apply_filter_all_threads(program).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The filters in the order in which they can be installed: after the last one no other is possible.
fn programs(profile: Profile, arch: TargetArch) -> Result<[BpfProgram; 3], BackendError> {
    let every = |calls: &[libc::c_long]| -> Rules {
        calls.iter().map(|call| (*call, Vec::new())).collect()
    };
    let mut free = FREE.to_vec();
    let mut bound: Vec<&Conditional> = BOUND.iter().collect();
    if profile != Profile::Descriptors {
        free.extend(READING);
        bound.extend(BOUND_READING);
    }
    if profile == Profile::Serving {
        free.extend(SERVING);
        bound.extend(BOUND_SERVING);
    }
    let mut allowed = Rules::new();
    for conditional in bound {
        let rules: &mut Vec<_> = allowed.entry(conditional.0).or_default();
        rules.extend(conditional.rules()?);
    }
    for call in free {
        let bound = allowed.insert(call, Vec::new());
        assert!(bound.is_none(), "call {call} is both bound and free");
    }
    let mut hostile = every(HOSTILE);
    if profile == Profile::Serving {
        let bound = BOUND_SERVING.iter().map(|conditional| &conditional.0);
        let served: Vec<_> = SERVING.iter().chain(bound).collect();
        hostile.retain(|call, _| !served.contains(&call));
    }
    let allow = SeccompAction::Allow;
    let errno = |number: i32| SeccompAction::Errno(number.unsigned_abs());
    let lists = [
        (hostile, allow.clone(), SeccompAction::KillProcess),
        (every(ABSENT), allow.clone(), errno(libc::ENOSYS)),
        (allowed, errno(libc::EPERM), allow),
    ];
    let [hostile, absent, allowed] = lists.map(
        |(rules, others, these)| -> Result<BpfProgram, BackendError> {
            SeccompFilter::new(rules, others, these, arch)?.try_into()
        },
    );
    Ok([hostile?, absent?, allowed?])
}

impl Conditional {
    /// One rule for each permitted combination of values.
    fn rules(&self) -> Result<Vec<SeccompRule>, BackendError> {
        let mut rules = vec![Vec::new()];
        for (argument, must) in self.1 {
            let mut longer = Vec::new();
            for condition in must.conditions(*argument)? {
                longer.extend(rules.iter().map(|rule: &Vec<SeccompCondition>| {
                    let condition = [condition.clone()];
                    rule.iter().cloned().chain(condition).collect()
                }));
            }
            rules = longer;
        }
        rules.into_iter().map(SeccompRule::new).collect()
    }
}

impl Must {
    /// One condition for each permitted value of an argument.
    fn conditions(&self, argument: Argument) -> Result<Vec<SeccompCondition>, BackendError> {
        let (number, width) = match argument {
            Argument::Int(number) => (number, SeccompCmpArgLen::Dword),
            Argument::Long(number) => (number, SeccompCmpArgLen::Qword),
        };
        let is = |compare, value| SeccompCondition::new(number, width.clone(), compare, value);
        match *self {
            Self::BeOneOf(values) => {
                let values = values.iter();
                values.map(|value| is(SeccompCmpOp::Eq, *value)).collect()
            }
            Self::Have { mask, bits } => Ok(vec![is(SeccompCmpOp::MaskedEq(mask), bits)?]),
            Self::BeThisProcess => {
                let pid = rustix::process::getpid().as_raw_nonzero().get();
                Ok(vec![is(SeccompCmpOp::Eq, u64::from(pid.unsigned_abs()))?])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_has_filters() {
        for profile in [
            Profile::Descriptors,
            Profile::DescriptorsAndReading,
            Profile::Serving,
        ] {
            for arch in [TargetArch::x86_64, TargetArch::aarch64] {
                assert!(programs(profile, arch).is_ok(), "{profile:?}");
            }
        }
    }
}
