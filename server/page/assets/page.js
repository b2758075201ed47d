// Keeps the overview fresh: an event carries what changed in each list since the one before.
"use strict";
(() => {
  const connection = document.getElementById("connection");
  const pause = document.getElementById("pause");
  let last = document.body.dataset.seq;
  let source = null;
  let paused = false;
  let again = 0;

  const say = (text, kind) => {
    if (connection.textContent !== text) {
      connection.textContent = text;
    }
    connection.className = kind;
  };

  // parse makes an element of a fragment, which the server has escaped.
  const parse = (html) => {
    const holder = document.createElement("template");
    holder.innerHTML = html;
    return holder.content.firstElementChild;
  };

  // morph makes one node like another and keeps what is equal, so that focus and selection stay.
  const morph = (from, to) => {
    if (from.isEqualNode(to)) {
      return;
    }
    if (from.nodeName !== to.nodeName || from.nodeType !== to.nodeType) {
      from.replaceWith(to);
      return;
    }
    if (from.nodeType !== Node.ELEMENT_NODE) {
      from.data = to.data;
      return;
    }
    for (const a of [...from.attributes]) {
      if (!to.hasAttribute(a.name)) {
        from.removeAttribute(a.name);
      }
    }
    for (const a of to.attributes) {
      if (from.getAttribute(a.name) !== a.value) {
        from.setAttribute(a.name, a.value);
      }
    }
    const old = [...from.childNodes];
    const fresh = [...to.childNodes];
    fresh.forEach((node, i) => (i < old.length ? morph(old[i], node) : from.append(node)));
    old.slice(fresh.length).forEach((node) => node.remove());
  };

  // change brings one list up to date.
  const change = (list, {order, html}) => {
    const there = new Map([...list.children].map((e) => [e.dataset.key, e]));
    for (const key of Object.keys(html || {})) {
      const made = parse(html[key]);
      const old = there.get(key);
      if (!old) {
        there.set(key, made);
        made.classList.add("new");
      } else {
        morph(old, made);
      }
    }
    if (!order) {
      return;
    }
    let at = list.firstElementChild;
    const wanted = new Set(order);
    for (const key of order) {
      while (at && !wanted.has(at.dataset.key)) {
        const gone = at;
        at = at.nextElementSibling;
        gone.remove();
      }
      const e = there.get(key);
      if (!e) {
        continue;
      }
      if (e === at) {
        at = at.nextElementSibling;
      } else {
        list.insertBefore(e, at);
      }
    }
    while (at) {
      const gone = at;
      at = at.nextElementSibling;
      gone.remove();
    }
  };

  const stop = () => {
    clearTimeout(again);
    if (source) {
      source.close();
      source = null;
    }
  };

  const follow = () => {
    stop();
    if (paused || document.hidden) {
      return;
    }
    const query = new URLSearchParams({since: last, q: document.body.dataset.search});
    source = new EventSource("/ui/events?" + query);
    source.onopen = () => say("live", "live");
    source.onmessage = (event) => {
      last = event.lastEventId;
      const lists = JSON.parse(event.data);
      for (const name of Object.keys(lists)) {
        change(document.getElementById(name), lists[name]);
      }
    };
    source.onerror = () => {
      say("no connection: trying again", "lost");
      if (source && source.readyState === EventSource.CLOSED) { // refused
        again = setTimeout(follow, 5000);
      }
    };
  };

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume" : "Pause";
    if (paused) {
      stop();
      say("paused", "paused");
    } else {
      follow();
    }
  });
  // A page that nobody sees costs nothing.
  document.addEventListener("visibilitychange", follow);
  follow();
})();
