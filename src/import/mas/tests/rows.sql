-- Users 1 to 5: ann, bob, carl, dora, eve.
INSERT INTO users (user_id, username, created_at, locked_at, deactivated_at, can_request_admin) VALUES
    (@U(1), 'ann', @T(1700000001234), NULL, NULL, TRUE), (@U(2), 'bob', @T(20), @T(21), NULL, FALSE),
    (@U(3), 'carl', @T(20), NULL, NULL, FALSE), (@U(4), 'dora', @T(20), NULL, NULL, FALSE),
    (@U(5), 'eve', @T(20), NULL, @T(22), FALSE);
INSERT INTO user_passwords (user_password_id, user_id, hashed_password, created_at, version) VALUES
    (@U(10), @U(1), '$argon2id$v=19$new', @T(9), 2), (@U(11), @U(1), '$2b$12$old', @T(8), 1),
    (@U(12), @U(2), '$2b$12$bob', @T(8), 1), (@U(13), @U(3), 'md5', @T(8), 9),
    (@U(14), @U(4), '$pbkdf2-sha256$i=1,l=32$dora', @T(8), 3);
INSERT INTO user_emails (user_email_id, user_id, email, created_at) VALUES
    (@U(30), @U(1), 'ann@mail.example', @T(7)), (@U(31), @U(99), 'lost@mail.example', @T(7));
INSERT INTO user_unsupported_third_party_ids VALUES (@U(1), 'msisdn', '491', @T(8));
INSERT INTO user_registration_tokens VALUES
    (@U(35), 'welcome', 5, 2, @T(9), NULL), (@U(36), 'revoked', NULL, 0, NULL, @T(9));
INSERT INTO upstream_oauth_links VALUES
    (@U(40), @U(900), @U(1), 'sub'), (@U(41), @U(901), @U(1), 'other'), (@U(42), @U(900), NULL, 'new');

-- A public client, one with a secret, and one that acts for itself.
INSERT INTO oauth2_clients (oauth2_client_id, encrypted_client_secret, redirect_uris, grant_type_authorization_code, grant_type_refresh_token, client_name, client_uri, token_endpoint_auth_method) VALUES
    (@U(50), NULL, @A(https://app.example/cb), TRUE, TRUE, 'App', 'https://app.example/', 'none'),
    (@U(51), @SECRET, @A(https://b.example/cb), TRUE, TRUE, NULL, 'https://b.example/', 'client_secret_basic'),
    (@U(52), NULL, @A(), FALSE, FALSE, 'Program', NULL, 'client_secret_basic');
-- The phone of ann, one that has ended, one of the program, one of nobody, one for administration, and
-- one of a client that is not there.
INSERT INTO oauth2_sessions (oauth2_session_id, user_id, oauth2_client_id, scope_list, created_at, finished_at) VALUES
    (@U(60), @U(1), @U(50), @A(openid urn:matrix:org.matrix.msc2967.client:api:* urn:matrix:org.matrix.msc2967.client:device:PHONE), @T(100), NULL),
    (@U(61), @U(1), @U(50), @A(urn:matrix:client:api:* urn:matrix:client:device:OLD), @T(101), @T(150)),
    (@U(62), NULL, @U(52), @A(urn:mas:admin), @T(102), NULL),
    (@U(63), @U(99), @U(50), @A(urn:matrix:client:api:* urn:matrix:client:device:X), @T(103), NULL),
    (@U(64), @U(1), @U(51), @A(urn:synapse:admin:* urn:mas:admin), @T(104), NULL),
    (@U(65), @U(2), @U(59), @A(urn:synapse:admin:*), @T(105), NULL);
-- The phone was told its second refresh token, if its answer has arrived.
INSERT INTO oauth2_access_tokens (oauth2_access_token_id, oauth2_session_id, access_token, created_at, expires_at, first_used_at, revoked_at) VALUES
    (@U(80), @U(60), 'mat_revoked', @T(110), @T(9000), @T(111), @T(120)),
    (@U(81), @U(60), 'mat_phone', @T(120), @T(9000), NULL, NULL),
    (@U(82), @U(61), 'mat_ended', @T(110), @T(9000), @T(111), NULL),
    (@U(83), @U(62), 'mat_program', @T(110), @T(9000), @T(111), NULL),
    (@U(84), @U(64), 'mat_admin', @T(110), NULL, @T(111), NULL);
INSERT INTO oauth2_refresh_tokens (oauth2_refresh_token_id, oauth2_session_id, oauth2_access_token_id, next_oauth2_refresh_token_id, refresh_token, created_at, consumed_at, revoked_at) VALUES
    (@U(80), @U(60), @U(80), @U(81), 'mar_phone_1', @T(110), @T(120), NULL),
    (@U(81), @U(60), @U(81), NULL, 'mar_phone_2', @T(120), NULL, NULL),
    (@U(82), @U(61), @U(82), NULL, 'mar_ended', @T(110), NULL, NULL),
    (@U(85), @U(64), NULL, NULL, 'mar_revoked', @T(110), NULL, @T(111)),
    (@U(86), @U(65), NULL, NULL, 'mar_bob', @T(110), NULL, NULL);

-- The browser of ann, and a device that Synapse was not told of yet.
INSERT INTO compat_sessions (compat_session_id, user_id, device_id, created_at, finished_at, last_active_at, last_active_ip, human_name) VALUES
    (@U(70), @U(1), 'WEB', @T(10), NULL, @T(11), '192.0.2.1', NULL),
    (@U(71), @U(1), 'NEW', @T(10), NULL, @T(12), '192.0.2.1', 'New one'),
    (@U(72), @U(1), 'GONE', @T(10), @T(13), NULL, NULL, NULL);
INSERT INTO compat_access_tokens (compat_access_token_id, compat_session_id, access_token, created_at, expires_at) VALUES
    (@U(70), @U(70), 'mct_used', @T(10), @T(11)), (@U(71), @U(70), 'mct_web', @T(11), @T(9000)),
    (@U(72), @U(71), 'syt_new', @T(10), NULL), (@U(73), @U(72), 'mct_ended', @T(10), NULL),
    (@U(74), @U(79), 'mct_lost', @T(10), NULL);
INSERT INTO compat_refresh_tokens (compat_refresh_token_id, compat_session_id, compat_access_token_id, refresh_token, created_at, consumed_at) VALUES
    (@U(70), @U(70), @U(70), 'mcr_used', @T(10), @T(11)), (@U(71), @U(70), @U(71), 'mcr_web', @T(11), NULL);

-- A token that ann made to act as herself, and one that has expired.
INSERT INTO personal_sessions (personal_session_id, owner_user_id, actor_user_id, human_name, scope_list, created_at) VALUES
    (@U(90), @U(1), @U(1), 'Script', @A(urn:matrix:client:api:*), @T(110));
INSERT INTO personal_access_tokens (personal_access_token_id, personal_session_id, access_token_sha256, created_at, expires_at) VALUES
    (@U(90), @U(90), @X(0707070707070707070707070707070707070707070707070707070707070707), @T(110), NULL),
    (@U(91), @U(90), @X(0808080808080808080808080808080808080808080808080808080808080808), @T(110), @T(120));
INSERT INTO user_sessions VALUES (@U(95));
