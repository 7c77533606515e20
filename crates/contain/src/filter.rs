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
    let mut allowed = every(FREE);
    let mut bound: Vec<&Conditional> = BOUND.iter().collect();
    if profile != Profile::Descriptors {
        allowed.extend(every(READING));
        bound.extend(BOUND_READING);
    }
    if profile == Profile::Serving {
        bound.extend(BOUND_SERVING);
    }
    for conditional in bound {
        allowed.insert(conditional.0, conditional.rules()?);
    }
    let mut hostile = every(HOSTILE);
    if profile == Profile::Serving {
        allowed.extend(every(SERVING));
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
    /// One rule for each permitted value.
    fn rules(&self) -> Result<Vec<SeccompRule>, BackendError> {
        let (number, width) = match self.1 {
            Argument::Int(number) => (number, SeccompCmpArgLen::Dword),
            Argument::Long(number) => (number, SeccompCmpArgLen::Qword),
        };
        let rule = |compare, value| {
            let condition = SeccompCondition::new(number, width.clone(), compare, value)?;
            SeccompRule::new(vec![condition])
        };
        match self.2 {
            Must::BeOneOf(values) => {
                let values = values.iter();
                values.map(|value| rule(SeccompCmpOp::Eq, *value)).collect()
            }
            Must::Have { mask, bits } => Ok(vec![rule(SeccompCmpOp::MaskedEq(mask), bits)?]),
            Must::BeThisProcess => {
                let pid = rustix::process::getpid().as_raw_nonzero().get();
                Ok(vec![rule(SeccompCmpOp::Eq, u64::from(pid.unsigned_abs()))?])
            }
        }
    }
}
