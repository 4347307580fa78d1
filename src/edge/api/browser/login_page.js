"use strict";
const message = document.getElementById("message");
const ways = document.getElementById("ways");
const form = document.getElementById("password-form");
const query = new URLSearchParams(location.search);
const api = location.pathname.replace(/\/static\/client\/login\/?$/, "/client/v3/login");

function say(text, kind) {
  message.textContent = text;
  message.className = kind;
}

// What the client that opened the page wants of the login; never whom it logs in.
function wishes() {
  const wishes = {};
  for (const name of ["device_id", "initial_device_display_name"]) {
    if (query.get(name)) wishes[name] = query.get(name);
  }
  if (query.get("refresh_token") === "true") wishes.refresh_token = true;
  return wishes;
}

function tell(response) {
  ways.hidden = true;
  say("You are logged in as " + response.user_id + ". You can close this page.", "good");
  // Two specifications, two names.
  const client = window.matrixLogin;
  if (typeof window.onLogin === "function") window.onLogin(response);
  else if (client && typeof client.onLogin === "function") client.onLogin(response);
}

async function logIn(proof) {
  say("Logging in …", "note");
  const buttons = [...document.querySelectorAll("button")];
  buttons.forEach((button) => { button.disabled = true; });
  try {
    const answer = await fetch(api, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...wishes(), ...proof }),
    });
    const response = await answer.json();
    if (answer.ok) return tell(response);
    say(response.error || "This did not work.", "bad");
  } catch (error) {
    say("The server cannot be reached. Try again in a moment.", "bad");
  } finally {
    buttons.forEach((button) => { button.disabled = false; });
  }
  if (form) document.getElementById("password").focus();
}

if (form) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    logIn({
      type: "m.login.password",
      identifier: { type: "m.id.user", user: document.getElementById("user").value.trim() },
      password: document.getElementById("password").value,
    });
  });
}

// Back from another service, with a token that is good for one login.
const token = query.get("loginToken");
if (token) {
  query.delete("loginToken");
  const rest = query.toString();
  history.replaceState(null, "", location.pathname + (rest ? "?" + rest : ""));
  logIn({ type: "m.login.token", token });
}
