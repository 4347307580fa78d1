//! Tokens that name positions in the log and in the history of rooms.

use super::Server;
use crate::http::ApiError;
use logcabin_read::{
    sync::UndonePosition,
    view::token::{BadToken, HistoryToken, Pos, SourcePlace, Token},
};
use logcabin_record::{Offset, command::ImportSource};
use logcabin_state::{Room, rooms::gaps::TimelinePosition};

/// What a position names was undone by a restore, or was of the server from which this one was
/// imported.
pub(in crate::api) struct Undone(pub(in crate::api) UndonePosition);

impl Server {
    /// The position that a token names, if it is of this server's history.
    pub(in crate::api) fn position(&self, token: &str) -> Result<Offset, ApiError> {
        let position = self.position_or_undone(token)?;
        position.map_err(|_| {
            let message = "This token refers to history that a restore or an import replaced.";
            ApiError::invalid_param(message)
        })
    }

    /// As [`Server::position`], for callers that can handle a position that a restore has undone:
    /// what that names never came to be.
    pub(in crate::api) fn position_or_undone(
        &self,
        token: &str,
    ) -> Result<Result<Offset, Undone>, ApiError> {
        let not_ours = || ApiError::invalid_param("This is not a token of this server.");
        // A `pos` of sliding sync is good wherever a token is.
        let pos = || token.parse::<Pos>().map(|pos| pos.token);
        // And so is a position in a room's history.
        let past = || {
            let HistoryToken { epoch, place } = token.parse()?;
            Ok::<_, BadToken>(Token { epoch, offset: place.offset() })
        };
        match token.parse().or_else(|_| pos()).or_else(|_| past()) {
            Ok(token) => self.place(token),
            Err(_) => match self.position_at_source(token) {
                Some(from) => Ok(Err(Undone(from))),
                None => Err(not_ours()),
            },
        }
    }

    /// The position that a token names of the server from which this one was imported. Such a
    /// client starts over, as one from a future that a restore undid.
    pub(in crate::api) fn position_at_source(&self, token: &str) -> Option<UndonePosition> {
        let import = self.engine.state().imports.newest(ImportSource::Synapse)?;
        let token = Token::of_synapse(token)?;
        Some(UndonePosition { token, after: import.begun })
    }

    /// The position in a room's history that a token names.
    pub(in crate::api) fn past_position(
        &self,
        room: &Room,
        token: &str,
    ) -> Result<TimelinePosition, ApiError> {
        if let Some(place) = self.past_at_source(room, token)? {
            return Ok(place);
        }
        let offset = self.position(token)?;
        let Ok(HistoryToken { epoch, place: TimelinePosition::Within { gap, passed } }) =
            token.parse()
        else {
            return Ok(TimelinePosition::After(offset));
        };
        // After a restore, others are found for a gap than had been before.
        let end = if epoch == self.epoch { None } else { self.engine.state().epoch_end(epoch) };
        let known = room.filled_as_of(gap, end.unwrap_or(Offset::MAX));
        if end.is_none() && passed > known {
            // Another node may have given it out.
            let error = ApiError::invalid_param("This is not a token of this server.");
            return Err(error.unless_behind());
        }
        Ok(TimelinePosition::Within { gap, passed: passed.min(known) })
    }

    /// As [`Server::position`], for a token with a room: clients keep those that they had from the
    /// server from which this one was imported, each with a part of the room's history that they do
    /// not have.
    pub(in crate::api) fn position_in(&self, room: &Room, token: &str) -> Result<Offset, ApiError> {
        let place = self.past_at_source(room, token)?.map(TimelinePosition::offset);
        place.map_or_else(|| self.position(token), Ok)
    }

    /// The position in a room's history that a token names of the server from which this one was
    /// imported.
    fn past_at_source(
        &self,
        room: &Room,
        token: &str,
    ) -> Result<Option<TimelinePosition>, ApiError> {
        let Some(import) = self.engine.state().imports.newest(ImportSource::Synapse) else {
            return Ok(None);
        };
        let Some(place) = SourcePlace::of_synapse(token) else { return Ok(None) };
        Ok(self.engine.events().past_at_source(room, &import, place)?)
    }

    /// The token of a position in a room's history.
    pub(in crate::api) fn history_token(&self, place: TimelinePosition) -> String {
        HistoryToken { epoch: self.epoch, place }.to_string()
    }

    /// As [`Server::position_or_undone`], of a token that was read.
    pub(in crate::api) fn place(&self, token: Token) -> Result<Result<Offset, Undone>, ApiError> {
        let not_ours = || ApiError::invalid_param("This is not a token of this server.");
        let offset = token.offset;
        if token.epoch == Token::AT_SOURCE {
            let import = self.engine.state().imports.newest(ImportSource::Synapse);
            let after = import.ok_or_else(not_ours)?.begun;
            return Ok(Err(Undone(UndonePosition { token, after })));
        }
        if token.epoch == self.epoch {
            let given_out = offset <= self.engine.head().offset();
            // Another node may have given it out.
            return if given_out { Ok(Ok(offset)) } else { Err(not_ours().unless_behind()) };
        }
        let after = self.engine.state().epoch_end(token.epoch).ok_or_else(not_ours)?;
        Ok(if offset <= after { Ok(offset) } else { Err(Undone(UndonePosition { token, after })) })
    }

    /// The token of a position.
    pub(in crate::api) fn token(&self, offset: Offset) -> String {
        Token { epoch: self.epoch, offset }.to_string()
    }
}
