"use strict";
// Takes the content of the page from a stream of events, and changes only what differs, so that the
// focus, the selection and opened details stay.
(() => {
  const main = document.getElementById("main");
  const live = document.getElementById("live");
  const words = document.createElement("span");
  const button = document.createElement("button");
  button.type = "button";
  words.setAttribute("role", "status");
  live.replaceChildren(words, button);
  let source = null;
  let latest = 0;

  const say = (text, kind) => {
    if (words.textContent !== text) words.textContent = text;
    live.className = "live " + kind;
  };

  const mayChange = (one, other) =>
    one.nodeType === other.nodeType && one.nodeName === other.nodeName && one.id === other.id;

  const change = (one, other) => {
    if (one.nodeType !== Node.ELEMENT_NODE) {
      if (one.nodeValue !== other.nodeValue) one.nodeValue = other.nodeValue;
      return;
    }
    const isOpened = one.nodeName === "DETAILS" ? "open" : null;
    for (const { name } of [...one.attributes])
      if (name !== isOpened && name !== "tabindex" && !other.hasAttribute(name)) one.removeAttribute(name);
    for (const { name, value } of [...other.attributes])
      if (name !== isOpened && one.getAttribute(name) !== value) one.setAttribute(name, value);
    const wanted = [...other.childNodes];
    wanted.forEach((child, at) => {
      const present = one.childNodes[at];
      if (!present) one.append(document.importNode(child, true));
      else if (mayChange(present, child)) change(present, child);
      else present.replaceWith(document.importNode(child, true));
    });
    while (one.childNodes.length > wanted.length) one.lastChild.remove();
  };

  const show = (text) => {
    const parsed = new DOMParser().parseFromString("<main>" + text + "</main>", "text/html");
    const content = parsed.querySelector("main");
    content.id = "main";
    content.tabIndex = -1;
    change(main, content);
    const title = main.querySelector("[data-title]");
    document.title = (title ? title.dataset.title + " – " : "") + "Taupe";
    latest = Date.now();
    say("live", "on");
  };

  const stop = () => {
    if (source) source.close();
    source = null;
    button.textContent = "Continue";
    say("paused", "off");
  };

  const start = () => {
    button.textContent = "Pause";
    say("connecting", "off");
    source = new EventSource("/events");
    source.addEventListener("state", (event) => show(event.data));
    source.addEventListener("error", () => {
      if (!source) return;
      if (source.readyState === EventSource.CLOSED) {
        stop();
        say("no session: open the address that `taupe web` prints", "bad");
      } else say("no answer: has `taupe web` ended?", "bad");
    });
  };

  button.addEventListener("click", () => (source ? stop() : start()));
  setInterval(() => {
    if (source && latest && Date.now() - latest > 10000) say("no news for 10 s", "bad");
  }, 2000);
  start();
})();
