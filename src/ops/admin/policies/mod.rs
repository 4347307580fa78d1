//! Moderation policy lists: which this server applies, what their rules match, and what they kept
//! away.

mod approve;
mod kept_away;
mod list;
mod simulate;
mod subscribe;
mod test;
mod unsubscribe;

pub use approve::{ApprovePolicyRules, RulesApproved};
pub use kept_away::{KeptAwayList, KeptLine, ListKeptAway, kept_away};
pub use list::{ListPolicyLists, PolicyList, PolicyListsShown, WaitingRule, lists};
pub use simulate::{SimulatePolicies, Simulated, SimulatedMatch};
pub use subscribe::{SubscribePolicyList, Subscribed};
pub use test::{PolicyMatch, TestPolicy, Tested, test};
pub use unsubscribe::{UnsubscribePolicyList, Unsubscribed};
