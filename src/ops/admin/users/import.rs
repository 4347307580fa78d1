//! Create an account from the export of a user, whose files are in the store already.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    admin::{
        act::{Act, Attribution},
        context::{ActContext, ActError},
    },
    export::{self, ImportableData, ImportedUser},
};
use logcabin_base::threads;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImportUser {
    /// The directory of the export.
    pub src: PathBuf,
    /// The new name; none for the exported one.
    pub user: Option<String>,
}

impl Act for ImportUser {
    const NAME: &'static str = "import-user";
    const DONE: &'static str = "user-imported";
    type Done = ImportedUser;

    async fn perform(
        self,
        context: &ActContext,
        by: Attribution,
    ) -> Result<ImportedUser, ActError> {
        let Self { src, user } = self;
        let read = threads::spawn_blocking(move || ImportableData::read(&src)).await;
        let belongings = read.map_err(ActError::invalid)?.map_err(ActError::invalid)?;
        let name = user.as_deref().unwrap_or_else(|| belongings.localpart());
        let user_id = context.new_user_id(name)?;
        let imported =
            export::import_user(&context.engine, &by.origin, user_id.clone(), &belongings).await;
        imported.map_err(ActError::of_user(&user_id))
    }

    async fn effect(&self, _: &ActContext) -> Result<Vec<String>, ActError> {
        let name = self.user.as_deref().unwrap_or("the name that they had");
        Ok(vec![format!("an account is created from the export, with {name}")])
    }
}
