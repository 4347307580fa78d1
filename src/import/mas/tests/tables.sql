-- The columns that are read, as the service's PostgreSQL database of July 2026 has them.
CREATE TABLE _sqlx_migrations (version BIGINT PRIMARY KEY, success BOOLEAN NOT NULL);
INSERT INTO _sqlx_migrations VALUES (20260720134722, TRUE);

CREATE TABLE users (user_id UUID PRIMARY KEY, username TEXT NOT NULL UNIQUE, created_at TIMESTAMP WITH TIME ZONE NOT NULL, locked_at TIMESTAMP WITH TIME ZONE, deactivated_at TIMESTAMP WITH TIME ZONE, can_request_admin BOOLEAN NOT NULL DEFAULT FALSE, is_guest BOOLEAN NOT NULL DEFAULT FALSE);
CREATE TABLE user_passwords (user_password_id UUID PRIMARY KEY, user_id UUID NOT NULL, hashed_password TEXT NOT NULL, created_at TIMESTAMP WITH TIME ZONE NOT NULL, version INTEGER NOT NULL);
CREATE TABLE user_emails (user_email_id UUID PRIMARY KEY, user_id UUID NOT NULL, email TEXT NOT NULL, created_at TIMESTAMP WITH TIME ZONE NOT NULL);
CREATE TABLE user_unsupported_third_party_ids (user_id UUID NOT NULL, medium TEXT NOT NULL, address TEXT NOT NULL, created_at TIMESTAMP WITH TIME ZONE NOT NULL, PRIMARY KEY (user_id, medium, address));
CREATE TABLE user_registration_tokens (user_registration_token_id UUID PRIMARY KEY, token TEXT NOT NULL UNIQUE, usage_limit INTEGER, times_used INTEGER NOT NULL DEFAULT 0, expires_at TIMESTAMP WITH TIME ZONE, revoked_at TIMESTAMP WITH TIME ZONE);
CREATE TABLE upstream_oauth_links (upstream_oauth_link_id UUID PRIMARY KEY, upstream_oauth_provider_id UUID NOT NULL, user_id UUID, subject TEXT NOT NULL);

CREATE TABLE compat_sessions (compat_session_id UUID PRIMARY KEY, user_id UUID NOT NULL, device_id TEXT, created_at TIMESTAMP WITH TIME ZONE NOT NULL, finished_at TIMESTAMP WITH TIME ZONE, last_active_at TIMESTAMP WITH TIME ZONE, last_active_ip INET, user_agent TEXT, human_name TEXT);
CREATE TABLE compat_access_tokens (compat_access_token_id UUID PRIMARY KEY, compat_session_id UUID NOT NULL, access_token TEXT NOT NULL UNIQUE, created_at TIMESTAMP WITH TIME ZONE NOT NULL, expires_at TIMESTAMP WITH TIME ZONE);
CREATE TABLE compat_refresh_tokens (compat_refresh_token_id UUID PRIMARY KEY, compat_session_id UUID NOT NULL, compat_access_token_id UUID NOT NULL, refresh_token TEXT NOT NULL UNIQUE, created_at TIMESTAMP WITH TIME ZONE NOT NULL, consumed_at TIMESTAMP WITH TIME ZONE);

CREATE TABLE oauth2_clients (oauth2_client_id UUID PRIMARY KEY, encrypted_client_secret TEXT, application_type TEXT, redirect_uris TEXT[] NOT NULL DEFAULT '{}', grant_type_authorization_code BOOLEAN NOT NULL, grant_type_refresh_token BOOLEAN NOT NULL, grant_type_device_code BOOLEAN NOT NULL DEFAULT FALSE, client_name TEXT, logo_uri TEXT, client_uri TEXT, policy_uri TEXT, tos_uri TEXT, token_endpoint_auth_method TEXT);
CREATE TABLE oauth2_sessions (oauth2_session_id UUID PRIMARY KEY, user_id UUID, oauth2_client_id UUID NOT NULL, scope_list TEXT[] NOT NULL, created_at TIMESTAMP WITH TIME ZONE NOT NULL, finished_at TIMESTAMP WITH TIME ZONE, last_active_at TIMESTAMP WITH TIME ZONE, last_active_ip INET, user_agent TEXT, human_name TEXT);
CREATE TABLE oauth2_access_tokens (oauth2_access_token_id UUID PRIMARY KEY, oauth2_session_id UUID NOT NULL, access_token TEXT NOT NULL UNIQUE, created_at TIMESTAMP WITH TIME ZONE NOT NULL, expires_at TIMESTAMP WITH TIME ZONE, first_used_at TIMESTAMP WITH TIME ZONE, revoked_at TIMESTAMP WITH TIME ZONE);
CREATE TABLE oauth2_refresh_tokens (oauth2_refresh_token_id UUID PRIMARY KEY, oauth2_session_id UUID NOT NULL, oauth2_access_token_id UUID, next_oauth2_refresh_token_id UUID, refresh_token TEXT NOT NULL UNIQUE, created_at TIMESTAMP WITH TIME ZONE NOT NULL, consumed_at TIMESTAMP WITH TIME ZONE, revoked_at TIMESTAMP WITH TIME ZONE);

CREATE TABLE personal_sessions (personal_session_id UUID PRIMARY KEY, owner_user_id UUID, owner_oauth2_client_id UUID, actor_user_id UUID NOT NULL, human_name TEXT NOT NULL, scope_list TEXT[] NOT NULL, created_at TIMESTAMP WITH TIME ZONE NOT NULL, revoked_at TIMESTAMP WITH TIME ZONE, last_active_at TIMESTAMP WITH TIME ZONE, last_active_ip INET);
CREATE TABLE personal_access_tokens (personal_access_token_id UUID PRIMARY KEY, personal_session_id UUID NOT NULL, access_token_sha256 BYTEA NOT NULL, created_at TIMESTAMP WITH TIME ZONE NOT NULL, expires_at TIMESTAMP WITH TIME ZONE, revoked_at TIMESTAMP WITH TIME ZONE);
CREATE TABLE user_sessions (user_session_id UUID PRIMARY KEY);
