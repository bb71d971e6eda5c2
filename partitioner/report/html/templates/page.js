"use strict";
const specs = JSON.parse(document.getElementById("charts").textContent);
const options = { mode: "vega", renderer: "svg", actions: false };

// -- pictures -------------------------------------------------------------------------

async function drawCharts() {
  for (const place of document.querySelectorAll(".chart")) {
    await vegaEmbed(place, specs[place.id], options);
    await new Promise(setTimeout); // whoever opens a box now need not wait for all
  }
}

// -- lines between boxes --------------------------------------------------------------

const LANE = 12; // pixels from one lane to the next
const LABEL = 70; // pixels that a label needs beside a box
const views = new WeakMap();

// Where a flow's boxes are, next to its own corner.
function placesIn(flow) {
  const corner = flow.getBoundingClientRect();
  const found = new Map();
  for (const box of flow.querySelectorAll(":scope > .row > .box")) {
    const at = box.getBoundingClientRect();
    found.set(Number(box.dataset.place), {
      left: at.left - corner.left,
      right: at.right - corner.left,
      top: at.top - corner.top,
      bottom: at.bottom - corner.top,
      head: box.firstElementChild.getBoundingClientRect().height,
    });
  }
  return { width: corner.width, height: corner.height, found };
}

const middle = (box) => (box.left + box.right) / 2;

function pathOf([start, end, lane], { width, height, found }, lanes) {
  const from = found.get(start), to = found.get(end);
  if (lane === 0) {
    const x = middle(from || to), until = to || from;
    return {
      points: [[x, from ? from.bottom : 0], [middle(until), to ? to.top : height]],
      head: to ? "triangle-down" : "",
    };
  }
  const side = width - LANE * (lanes - lane + 1) + LANE / 2;
  // A line leaves below the middle of a box's head, and comes in above it.
  const leave = from ? from.top + from.head * 0.7 : 0;
  const enter = to ? to.top + to.head * 0.3 : height;
  const points = [[side, leave], [side, enter]];
  if (from) points.unshift([from.right, leave]);
  if (to) points.push([to.right, enter]);
  return { points, head: to ? "triangle-left" : "" };
}

function pointsOf(flow) {
  const places = placesIn(flow), rows = [];
  const lanes = Number(flow.style.getPropertyValue("--lanes"));
  JSON.parse(flow.dataset.edges).forEach((edge, number) => {
    const [, , lane, kind, label] = edge;
    const { points, head } = pathOf(edge, places, lanes);
    const to = places.found.get(edge[1]);
    const fits = to && places.width - to.right > LABEL + LANE * lanes;
    points.forEach(([x, y], place) => rows.push({
      edge: number, place, x, y, kind,
      head: place === points.length - 1 ? head : "",
      label: fits && place === points.length - 1 ? label : "",
    }));
  });
  return { rows, ...places };
}

// The chart of lines lies behind the boxes of a flow; it is made once.
function viewOf(flow) {
  if (!views.has(flow)) {
    const place = flow.appendChild(document.createElement("li"));
    place.className = "lines";
    place.setAttribute("aria-hidden", "true");
    views.set(flow, vegaEmbed(place, specs.flows, options));
  }
  return views.get(flow);
}

async function drawFlow(flow) {
  const { view } = await viewOf(flow);
  const { rows, width, height } = pointsOf(flow);
  if (width) await view.width(width).height(height).data("points", rows).runAsync();
}

// Flows are drawn when their size changes: at first, on opening a box, in a new window.
const watched = new ResizeObserver((changes) => {
  for (const change of changes) drawFlow(change.target);
});

function watch(place) {
  for (const flow of place.querySelectorAll(".flow")) {
    if (flow.dataset.edges !== "[]") watched.observe(flow);
  }
}

// -- boxes ----------------------------------------------------------------------------

const model = document.querySelector(".model");

function fill(box) {
  if (!box.dataset.shape) return;
  const shared = document.getElementById(`shape-${box.dataset.shape}`);
  box.append(shared.content.cloneNode(true));
  delete box.dataset.shape;
  watch(box);
}

model.addEventListener("toggle", (event) => {
  if (event.target.open) fill(event.target);
}, true);

for (const button of document.querySelectorAll("[data-open]")) {
  button.addEventListener("click", () => {
    for (const box of model.querySelectorAll(".box")) {
      box.open = button.dataset.open === "cut" && box.classList.contains("many");
    }
  });
}

const tools = document.querySelector(".tools");
const nameOf = (box) => box.querySelector(":scope > summary > .name").textContent;

// Open the boxes around a module, given the path from here to it, and return its box.
function unfolded(place, path) {
  for (const box of place.querySelectorAll(":scope > .flow > .row > .box")) {
    const name = nameOf(box), within = path.startsWith(`${name}.`);
    if (path === name) return box;
    if (!within && !box.classList.contains("group")) continue;
    const wasOpen = box.open;
    box.open = true;
    fill(box);
    const found = unfolded(box, within ? path.slice(name.length + 1) : path);
    if (found) return found;
    box.open = wasOpen;
  }
  return null;
}

tools.addEventListener("submit", (event) => {
  event.preventDefault();
  const path = tools.querySelector("input").value.trim();
  const found = path && unfolded(model, path);
  tools.querySelector("output").textContent =
    path && !found ? `The forward calls no module ${path}.` : "";
  if (!found) return;
  found.open = true;
  found.scrollIntoView({ block: "center" });
  found.firstElementChild.focus({ preventScroll: true });
});
tools.hidden = false;

// -- light and dark -------------------------------------------------------------------

const theme = document.getElementById("theme");
const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
const named = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  named();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", named);
theme.hidden = false;
named();

// -- paper: what is folded would be lost on it ----------------------------------------

const folded = [];
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll(".words > details, .fold")) {
    if (!fold.open) folded.push(fold);
    fold.open = true;
  }
});
addEventListener("afterprint", () => {
  for (const fold of folded.splice(0)) fold.open = false;
});

// Boxes open from the start; pictures follow one by one, those at the top first.
watch(model);
performance.mark("interactive");
drawCharts().then(() => {
  performance.mark("drawn");
  document.documentElement.dataset.drawn = "";
});
