"use strict";
const message = document.getElementById("message");

for (const form of document.querySelectorAll("form[data-account]")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    button.disabled = true;
    message.textContent = "One moment …";
    message.className = "note";
    try {
      const answer = await fetch(endpoint, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ pending, ...Object.fromEntries(new FormData(form)) }),
      });
      const response = await answer.json();
      if (response.location) {
        location.assign(response.location);
      } else if (response.done) {
        message.textContent = response.done;
        message.className = "good";
        form.hidden = true;
      } else {
        message.textContent = response.error || "This did not work.";
        message.className = "bad";
      }
    } catch (error) {
      message.textContent = "The server cannot be reached. Try again in a moment.";
      message.className = "bad";
    }
    button.disabled = false;
  });
}
