// Looks at the page it is put into, and tells the page around it what is wrong.
addEventListener("load", () => {
  const wrong = [];
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth)
    wrong.push(`scrolls sideways: ${root.scrollWidth} in ${root.clientWidth} pixels`);
  const ends = (inner, outer, slack) =>
    inner.left >= outer.left - slack && inner.right <= outer.right + slack &&
    inner.top >= outer.top - slack && inner.bottom <= outer.bottom + slack;
  for (const svg of document.querySelectorAll("svg")) {
    const box = svg.getBoundingClientRect();
    for (const part of svg.querySelectorAll("text, rect, circle, line, path"))
      if (!ends(part.getBoundingClientRect(), box, 1.5))
        wrong.push(`outside its plot: ${part.tagName} "${part.textContent.slice(0, 40)}" in ${svg.getAttribute("aria-label")}`);
    const texts = [...svg.querySelectorAll("text")].map(text => [text, text.getBoundingClientRect()]);
    texts.forEach(([one, a], at) => texts.slice(at + 1).forEach(([other, b]) => {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      // Lines of text overlap by what is above and below their letters.
      if (wide > 1 && high > 5)
        wrong.push(`on one another: "${one.textContent.slice(0, 30)}" and "${other.textContent.slice(0, 30)}"`);
    }));
    if (!svg.hasAttribute("aria-hidden") && !(svg.getAttribute("role") === "img" && svg.getAttribute("aria-label") !== null))
      wrong.push("a plot without a name");
  }
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const luminance = colour => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(byte => {
      const value = byte / 255;
      return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const seen = new Map();
  const contrast = (one, other) => {
    const key = one + other;
    if (!seen.has(key)) {
      const [a, b] = [luminance(one), luminance(other)];
      seen.set(key, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
    }
    return seen.get(key);
  };
  const ground = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
    return "white";
  };
  for (const element of document.querySelectorAll("h1, h2, h3, p, a, dt, dd, th, td, li, caption, summary, .sub, svg text")) {
    const style = getComputedStyle(element);
    const found = contrast(element.tagName === "text" ? style.fill : style.color, ground(element));
    if (found < 4.5)
      wrong.push(`contrast ${found.toFixed(1)}: ${element.tagName} "${element.textContent.slice(0, 40)}"`);
  }
  for (const table of document.querySelectorAll("table"))
    if (!table.closest(".box")) wrong.push("a table outside a box");
  if (document.querySelectorAll("script").length > 1) wrong.push("a script of the page's own");
  const fetched = performance.getEntriesByType("resource").map(entry => entry.name);
  if (fetched.length) wrong.push(`fetched: ${fetched}`);
  parent.postMessage({
    name: window.name,
    dark: matchMedia("(prefers-color-scheme: dark)").matches && luminance(ground(document.body)) < 0.1,
    light: matchMedia("(prefers-color-scheme: light)").matches && luminance(ground(document.body)) > 0.9,
    width: innerWidth,
    plots: document.querySelectorAll("svg[role=img]").length,
    title: document.title,
    wrong: [...new Set(wrong)].slice(0, 20),
  }, "*");
});
