//! Files: uploads, downloads, thumbnails and URL previews.

mod error;
mod file;
pub(super) mod files;
mod preview;
pub(super) mod serving;

use super::server::Server;
use crate::http::{Class, Table, limited};
use logcabin_config::HookPoint;

pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    table
        .on(files::upload, limited(Class::Media).screened(HookPoint::Upload))
        .on(files::create, limited(Class::Media).body_optional())
        .on(files::upload_to, limited(Class::Media).screened(HookPoint::Upload))
        .on(files::config, limited(Class::Media))
        .on(files::download, limited(Class::Media).guests())
        .on(files::download_as, limited(Class::Media).guests())
        .on(files::thumbnail, limited(Class::Media).guests())
        .on(preview::preview, limited(Class::Media))
        .on(files::old_config, limited(Class::Media))
        .on(files::old_download, limited(Class::Media))
        .on(files::old_download_as, limited(Class::Media))
        .on(files::old_thumbnail, limited(Class::Media))
        .on(preview::old_preview, limited(Class::Media))
}
