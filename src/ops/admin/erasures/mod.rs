//! Acts that show what was erased.
//!
//! A receipt is put together from the log: the record that caused the erasure (a redaction, a
//! `room.erase`, `room.purge`, `user.erase` or `media.remove`), and the `log.erase` records that
//! carried it out.

mod carried_out;
mod list;
pub mod page;
mod show;

pub use list::{ListErasures, ReceiptRow};
pub use page::{Page, PageStart, PendingErasures, page, waiting};
pub use show::{Bounds, ErasureReceipt, ShowErasure, receipt};
