//! Whose turn it is: to heal the space, or to do what one client does at a time.

use super::Failure;
use mend_data::space::Id;
use mend_data::space::target::{Claim, Failed, HEALING, NOBODY};
use mend_data::space::written::CLAIM;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Claims that are remembered; those that are over go then.
const MAX_CLAIMS: usize = 4096;

/// Who heals the space. It is remembered in memory: after a target's end somebody may begin anew, and finds what there is left to do.
#[derive(Debug, Default)]
pub struct Turns(Mutex<Turn>);

#[derive(Debug, Default)]
struct Turn {
    /// Who has it, and since when it was said last.
    healer: Option<(Id, Instant)>,
    /// When all files were read last.
    verified: Option<Instant>,
}

impl Turns {
    /// Takes the turn, or ends it.
    ///
    /// # Errors
    /// [`Failed::Busy`] if another one has it.
    pub fn take(&self, who: Id, verify_after: Option<u32>, done: bool) -> Result<(), Failure> {
        let mut turn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Turn { healer, verified } = &mut *turn;
        if healer.is_some_and(|(other, since)| other != who && since.elapsed() < Duration::from_secs(HEALING)) {
            return Err(Failure::new(Failed::Busy, "another one heals the space"));
        }
        if let Some(seconds) = verify_after {
            if verified.is_some_and(|at| at.elapsed() < Duration::from_secs(seconds.into())) {
                return Err(Failure::new(Failed::Busy, "all files were read a moment ago"));
            }
            *verified = Some(Instant::now());
        }
        *healer = (!done).then(|| (who, Instant::now()));
        Ok(())
    }
}

/// Who does what alone, and since when it was said last. It is in memory, as turns are.
#[derive(Debug, Default)]
pub struct Claims(Mutex<HashMap<Claim, (Id, Instant)>>);

impl Claims {
    /// Claims something, or ends it; for [`NOBODY`], whoever has claimed it.
    ///
    /// # Errors
    /// [`Failed::Busy`] if another one has claimed it.
    pub fn take(&self, claim: Claim, who: Id, over: bool) -> Result<(), Failure> {
        let mut claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lasts = |since: &Instant| since.elapsed() < Duration::from_secs(CLAIM);
        if claims.len() > MAX_CLAIMS {
            claims.retain(|_, (_, since)| lasts(since));
        }
        let ends_others = over && who == NOBODY;
        if !ends_others && claims.get(&claim).is_some_and(|(other, since)| *other != who && lasts(since)) {
            return Err(Failure::new(Failed::Busy, "another node does that"));
        }
        match over {
            true => claims.remove(&claim),
            false => claims.insert(claim, (who, Instant::now())),
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(claims: &Claims, file: u8, who: Id, over: bool) -> Result<(), Failed> {
        claims.take(Claim::Append([file; 16]), who, over).map_err(|failure| failure.kind)
    }

    #[test]
    fn what_nobody_ends_is_over_for_whoever_claimed_it_and_nothing_else_is() {
        let (claims, lost, next) = (Claims::default(), [1; 16], [2; 16]);
        take(&claims, 7, lost, false).unwrap();
        take(&claims, 8, lost, false).unwrap();
        assert_eq!(take(&claims, 7, next, true), Err(Failed::Busy));
        take(&claims, 7, NOBODY, true).unwrap();
        take(&claims, 7, next, false).unwrap();
        // Whoever had it ends nothing of the next one's.
        assert_eq!(take(&claims, 7, lost, true), Err(Failed::Busy));
        assert_eq!(take(&claims, 7, lost, false), Err(Failed::Busy));
        assert_eq!(take(&claims, 8, next, false), Err(Failed::Busy));
    }

    #[test]
    fn nobody_may_end_what_nobody_claimed_and_claims_nothing_of_others() {
        let claims = Claims::default();
        take(&claims, 7, NOBODY, true).unwrap();
        take(&claims, 7, [1; 16], false).unwrap();
        assert_eq!(take(&claims, 7, NOBODY, false), Err(Failed::Busy));
    }
}
