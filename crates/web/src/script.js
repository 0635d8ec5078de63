"use strict";
// Takes the content of the page from a stream of events, and changes only what differs, so that the
// focus, the selection and opened details stay.
(() => {
  // Each event repeats this value, which requests do not contain: another program that listens at this
  // address after `taupe web` has ended does not know it.
  const run = document.currentScript.dataset.run;
  const main = document.getElementById("main");
  const live = document.getElementById("live");
  const words = document.createElement("span");
  const button = document.createElement("button");
  button.type = "button";
  words.setAttribute("role", "status");
  live.replaceChildren(words, button);
  const reasons = {
    403: "no session: open the address that `taupe web` prints",
    421: "the address of this page has another name",
    503: "too many windows show this page: close one",
  };
  let source = null;
  let latest = 0;
  let isPaused = false;

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

  const stop = (text, kind) => {
    if (source) source.close();
    source = null;
    button.textContent = "Continue";
    say(text, kind);
  };

  const receive = ({ data }) => {
    const end = data.indexOf("\n");
    if (data.slice(0, end) === run) show(data.slice(end + 1));
    else stop("another program answers at this address: close this page", "bad");
  };

  // An event source does not say why it was refused.
  const explain = async () => {
    try {
      const answer = await fetch("events");
      await answer.body.cancel();
      return answer.ok ? "refused: load the page again" : reasons[answer.status] ?? "refused";
    } catch {
      return "no answer: has `taupe web` ended?";
    }
  };

  const start = () => {
    button.textContent = "Pause";
    say("connecting", "off");
    latest = Date.now();
    const opened = new EventSource("events");
    source = opened;
    opened.addEventListener("state", receive);
    opened.addEventListener("error", async () => {
      if (source !== opened) return;
      if (opened.readyState !== EventSource.CLOSED) {
        say("no answer: has `taupe web` ended?", "bad");
        return;
      }
      stop("refused", "bad");
      const reason = await explain();
      if (!source) say(reason, "bad");
    });
  };

  button.addEventListener("click", () => {
    isPaused = Boolean(source);
    if (isPaused) stop("paused", "off");
    else start();
  });
  // Nobody sees a hidden page, so the state need not be read for it.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && source) stop("hidden", "off");
    else if (!document.hidden && !source && !isPaused) start();
  });
  setInterval(() => {
    if (source && Date.now() - latest > 10000) say("no news for 10 s", "bad");
  }, 2000);
  if (!document.hidden) start();
})();
