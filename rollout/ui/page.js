// Redraw the page from its stream, and send the commands of the buttons.
const live = document.getElementById("live");
const message = document.getElementById("message");
const csrf = document.querySelector("meta[name=csrf]").content;
const buttons = document.querySelectorAll("button[data-command]");
const questions = { rollback: "Return all traffic to the previous version?" };

function state() {
  return document.getElementById("state").dataset;
}

function enable() {
  const allowed = state().allowed.split(" ");
  for (const button of buttons) button.disabled = !allowed.includes(button.dataset.command);
}

async function send(command) {
  const { name, rollout } = state();
  for (const button of buttons) button.disabled = true;
  message.textContent = "";
  const answer = await fetch(`/deployments/${name}/${command}?rollout=${rollout}`, {
    method: "POST",
    headers: { "x-csrf-token": csrf },
  });
  if (!answer.ok) message.textContent = (await answer.json()).error.message;
  enable();
}

for (const button of buttons) {
  button.addEventListener("click", () => {
    const question = questions[button.dataset.command];
    if (!question || confirm(question)) send(button.dataset.command);
  });
}

const stream = new EventSource(live.dataset.stream);
stream.onmessage = (event) => {
  live.innerHTML = event.data;
  document.body.classList.remove("stale");
  enable();
};
stream.onerror = () => document.body.classList.add("stale");
enable();
