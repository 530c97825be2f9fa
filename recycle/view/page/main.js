// The page as a whole: what keys and pointer do.

import { describe, restore } from './address.js';
import { describeBand } from './bands.js';
import { criticalPath, idleness } from './critical.js';
import { fillHead, makeSwitches, setSwitches } from './head.js';
import { curveAt } from './lanes.js';
import { fillLegend } from './legend.js';
import { tryPlans, watchRun } from './live.js';
import { Panel } from './model.js';
import { moves } from './moves.js';
import { draw, light } from './paint.js';
import { pngOf, save, svgOf } from './pictures.js';
import { AXIS, Scene } from './scene.js';
import { search } from './search.js';
import { readTheme } from './theme.js';
import { timeText } from './times.js';
import { explain } from './tip.js';

const page = JSON.parse(document.getElementById('data').textContent);
const unpack = (packed) => packed.map((each) => new Panel(each, page.ops, page.changes));
let panels = unpack(page.panels);
let flip = null; // kills a server, or brings it back, on a page that has other plans
const scene = new Scene(panels, page);
const plot = document.getElementById('plot');
const canvases = [document.getElementById('base'), document.getElementById('over')];
const base = canvases[0].getContext('2d', { alpha: false });
const over = canvases[1].getContext('2d');
let focus = null; // the box that is pointed at, or reached by keys
let note = null; // what is said where no box is: texts, and where
let follow = null; // the micro-batch that is followed
let pointer = null; // where the pointer is, while it points and no key has gone elsewhere
let waiting = false;
let remembering = 0;

function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    drawNow();
  });
}

// Drawing time is left in the page's performance entries, where the benchmark and the developer's tools find it.
function drawNow() {
  const start = performance.now();
  draw(scene, base);
  if (pointer) look();
  lightUp();
  remember();
  performance.clearMeasures('draw');
  performance.measure('draw', { start });
}

// What is lit: a box, the ways of a micro-batch, and what is said of a place without a box.
function lit() {
  const boxes = follow
    ? panels.map((panel) => ({ panel, boxes: panel.journey(follow.iteration, follow.home, follow.microBatch) }))
    : [];
  return [focus, boxes, note];
}

function lightUp() {
  light(scene, over, ...lit());
  explain(scene, focus, note);
}

// Keep the view in the page's address, a moment after its last change: browsers count how often that is written.
function remember() {
  clearTimeout(remembering);
  remembering = setTimeout(() => history.replaceState(null, '', `#${describe(scene, follow)}`), 150);
}

// What the pointer is at.
function look() {
  const hit = scene.at(pointer.x, pointer.y);
  focus = hit?.box >= 0 ? { panel: hit.panel, box: hit.box } : null;
  note = hit?.box >= 0 ? null : annotation(hit, pointer.x, pointer.y);
}

// What is said of a place that has no box: of a curve, a band, or what a server does there.
function annotation(hit, x, y) {
  const curve = curveAt(scene, x, y);
  if (curve) return { ...curve, x, y };
  if (!hit || x < scene.left || x > scene.edge) return null;
  if (hit.band) return { ...describeBand(scene, hit.band, scene.time(x)), x, y };
  const { panel, row } = hit;
  const time = scene.time(x) / panel.scale;
  const texts = panel.note(row, time, (3 * scene.perPixel) / panel.scale);
  if (texts.length) return { label: row.label, texts, x, y };
  if (time < 0 || time > panel.end) return null;
  const idle = idleness(panel, row, time, (each) => timeText(each, panel.timeUnit));
  return idle.texts.length ? { label: row.label, panel, x, y, ...idle } : null;
}

function resize() {
  const ratio = window.devicePixelRatio || 1;
  for (const canvas of canvases) {
    canvas.width = Math.round(plot.clientWidth * ratio);
    canvas.height = Math.round(plot.clientHeight * ratio);
  }
  scene.resize(plot.clientWidth, plot.clientHeight, ratio);
}

function regroup() {
  if (scene.rowHeight === scene.fitted) {
    const { from, perPixel } = scene;
    scene.fit();
    Object.assign(scene, { from, perPixel });
  } else {
    scene.layout();
  }
  moves.keepInside(scene);
  redraw();
}

function everything() {
  scene.fit();
  setSwitches(scene);
  moves.keepInside(scene);
  redraw();
}

// After a change, show all of the time again if that was so before.
function fitAgain(whole) {
  const { top } = scene;
  if (whole) scene.fit();
  else scene.layout();
  scene.top = top;
  setSwitches(scene);
  moves.keepInside(scene);
}

// What keys and wheel do: each moves the scene, and then it is drawn.
const zoom = (...how) => redraw(moves.zoom(scene, ...how));
const stretch = (...how) => redraw(moves.stretch(scene, ...how));
const pan = (...how) => redraw(moves.pan(scene, ...how));
const showTime = (...where) => redraw(moves.showTime(scene, ...where));

const serverOf = ({ pipeline, stage }) => `W${pipeline}_${stage}`;

// What a click or Enter does: kill a server on a page that has other plans, follow a micro-batch, or let a band show its rows.
function choose(hit, x = scene.left) {
  if (flip && hit?.row && x < scene.left) {
    flip(serverOf(hit.row));
    return;
  }
  if (hit?.band) {
    const name = scene.name(hit.panel, hit.band.group);
    if (!scene.opened.delete(name)) scene.opened.add(name);
    scene.foldChosen = true;
    regroup();
    return;
  }
  followed(hit?.box >= 0 ? hit : null);
}

function followed(target) {
  if (!target || target.panel.boxes.home[target.box] < 0) follow = null;
  else {
    const { iteration, home, microBatch } = target.panel.boxes;
    const box = target.box;
    const same = follow && follow.home === home[box] && follow.microBatch === microBatch[box];
    follow = same ? null : { iteration: iteration[box], home: home[box], microBatch: microBatch[box] };
  }
  lightUp();
  remember();
}

// By keys: along a row from box to box, or to the next row or band.
function step(across, down) {
  const { stops } = scene;
  const here = focus ? { panel: focus.panel, place: focus.panel.rowOf[focus.box] } : note?.stop;
  const number = here ? stops.findIndex((each) => isSame(each, here)) : -1;
  if (number < 0) arrive(stops.find((each) => scene.y(each.top) >= AXIS) ?? stops[0], scene.time(scene.left));
  else if (down) arrive(stops[number + down], focus ? focus.panel.begins(focus.box) : note.time);
  else if (focus) along(across);
}

const isSame = (one, other) => one.panel === other.panel && one.place === other.place && one.group === other.group;

function along(across) {
  const { panel, box } = focus;
  const { from, to } = panel.rows[panel.rowOf[box]].boxes;
  let next = box + across;
  while (next >= from && next < to && !scene.visible(panel, next)) next += across;
  if (next >= from && next < to) goTo(panel, next);
}

// Go to what a row has at a time, or say what is said of a row without boxes and of a band.
function arrive(stop, time) {
  if (!stop) return;
  const { panel } = stop;
  const box = stop.group === undefined ? panel.near(panel.rows[stop.place], time / panel.scale) : -1;
  if (box >= 0) {
    goTo(panel, box);
    return;
  }
  moves.revealStop(scene, stop);
  const [x, y] = [Math.min(Math.max(scene.x(time), scene.left + 1), scene.edge - 1), scene.y(stop.top) + 1];
  const label = stop.group === undefined ? panel.rows[stop.place].label : scene.grouping;
  [focus, pointer] = [null, null];
  note = { label, texts: [], x, y, ...annotation(scene.at(x, y), x, y), stop, time };
  drawNow();
}

// Bring a box into sight and point at it.
function goTo(panel, box) {
  moves.reveal(scene, panel, box);
  focus = { panel, box };
  [pointer, note] = [null, null];
  drawNow();
}

// Go to what a text names.
function find(text) {
  const found = text.trim() ? search(scene, text) : null;
  const said = document.getElementById('found');
  said.className = text.trim() && !found ? 'none' : '';
  said.textContent = !text.trim() ? '' : found ? '' : 'not here';
  if (!found) return false;
  const { panel, place, box } = found;
  if (place === undefined) {
    if (found.follow) follow = found.follow;
    goTo(panel, box);
    said.textContent = `on ${panel.rows[panel.rowOf[box]].label}`;
    return true;
  }
  const row = panel.rows[place];
  if (row.boxes.to > row.boxes.from) goTo(panel, row.boxes.from);
  else arrive(scene.lines.find((each) => isSame(each, { panel, place })), scene.from);
  said.textContent = row.dead ? 'dead' : row.label;
  return true;
}

// What Enter does where the keys are.
function chosen() {
  if (note?.stop?.group === undefined) followed(focus);
  else choose({ panel: note.stop.panel, band: note.stop });
}

// Whether a key scrolls what has the focus, or the page.
function isScrolling(event) {
  const place = event.target === document.body ? document.scrollingElement : event.target;
  return SCROLLING.includes(event.key) && !event.shiftKey && place !== plot && place.scrollHeight > place.clientHeight + 1;
}

function toggle(name) {
  document.getElementById(name).click();
}

const SCROLLING = ['ArrowUp', 'ArrowDown', 'PageUp', 'PageDown', 'Home', ' '];

const KEYS = {
  ArrowLeft: (event) => (event.shiftKey ? pan(-80, 0) : step(-1, 0)),
  ArrowRight: (event) => (event.shiftKey ? pan(80, 0) : step(1, 0)),
  ArrowUp: (event) => (event.shiftKey ? pan(0, -80) : step(0, -1)),
  ArrowDown: (event) => (event.shiftKey ? pan(0, 80) : step(0, 1)),
  PageUp: () => pan(0, 40 - scene.height),
  PageDown: () => pan(0, scene.height - 40),
  '+': () => zoom(0.8),
  '=': () => zoom(0.8),
  '-': () => zoom(1.25),
  ']': () => stretch(1.25),
  '[': () => stretch(0.8),
  0: everything,
  Home: everything,
  Enter: () => chosen(),
  ' ': () => chosen(),
  Escape: () => {
    focus = follow = note = pointer = null;
    document.getElementById('help').open = false;
    lightUp();
    remember();
  },
  '/': () => document.getElementById('search').focus(),
  m: () => toggle('memory'),
  c: () => toggle('critical'),
  t: () => toggle('transfers'),
};

function listen() {
  let drag = null;
  document.getElementById('fit').addEventListener('click', everything);
  const where = (event) => {
    const bounds = plot.getBoundingClientRect();
    return [event.clientX - bounds.left, event.clientY - bounds.top];
  };
  // Keys work wherever the focus is, but for those that mean something there.
  document.addEventListener('keydown', (event) => {
    const action = event.ctrlKey || event.metaKey || event.altKey ? null : KEYS[event.key];
    const { type, tagName } = event.target;
    if (!action || type === 'search' || tagName === 'SELECT' || isScrolling(event)) return;
    if (['Enter', ' '].includes(event.key) && ['INPUT', 'BUTTON', 'SUMMARY'].includes(tagName)) return;
    event.preventDefault();
    action(event);
  });
  plot.addEventListener('wheel', (event) => {
    event.preventDefault();
    const [x, y] = where(event);
    const turn = event.deltaY || event.deltaX;
    if (event.shiftKey) stretch(turn > 0 ? 0.8 : 1.25, y);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX, 0);
    else zoom(1.0015 ** Math.max(-300, Math.min(300, event.deltaY)), x, y);
  }, { passive: false });
  plot.addEventListener('pointerdown', (event) => {
    drag = { x: event.clientX, y: event.clientY, far: false };
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener('pointermove', (event) => {
    if (drag) {
      const [x, y] = [drag.x - event.clientX, drag.y - event.clientY];
      if (!drag.far && Math.hypot(x, y) < 4) return;
      drag = { x: event.clientX, y: event.clientY, far: true };
      plot.classList.add('panning');
      pan(x, y);
      return;
    }
    const [x, y] = where(event);
    pointer = { x, y };
    look();
    lightUp();
  });
  plot.addEventListener('pointerup', (event) => {
    const far = drag?.far;
    drag = null;
    plot.classList.remove('panning');
    if (far) return;
    const [x, y] = where(event);
    choose(scene.at(x, y), x);
  });
  plot.addEventListener('pointerleave', () => {
    focus = note = pointer = null;
    lightUp();
  });
  const field = document.getElementById('search');
  field.addEventListener('input', () => find(field.value));
  field.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' || event.key === 'Escape') {
      event.preventDefault();
      plot.focus();
    }
  });
  document.getElementById('tools').addEventListener('submit', (event) => event.preventDefault());
  document.getElementById('tools').addEventListener('change', () => fillLegend(panels, scene.show));
  document.getElementById('png').addEventListener('click', async () => save(await pngOf(...canvases), 'schedule.png'));
  document.getElementById('svg').addEventListener('click', () => {
    save(new Blob([svgOf(scene, base, lit())], { type: 'image/svg+xml' }), 'schedule.svg');
  });
  window.addEventListener('hashchange', () => {
    if (location.hash.slice(1) !== describe(scene, follow)) open();
  });
  // The plot takes what the head leaves of the window.
  new ResizeObserver(() => {
    if (plot.clientWidth === scene.width && plot.clientHeight === scene.height) return;
    const { whole } = scene;
    resize();
    fitAgain(whole);
    redraw();
  }).observe(plot);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    scene.theme = readTheme(page, base);
    redraw();
  });
}

// Show other schedules in the place of these; who has not zoomed sees all of them.
function replace(next) {
  const { whole } = scene;
  const [panel] = panels;
  const place = focus ? panel.rowOf[focus.box] : note?.stop?.place;
  const label = panel.rows[place]?.label;
  const time = focus ? panel.begins(focus.box) : note?.time;
  const group = note?.stop?.group;
  scene.panels = panels = unpack(next.panels);
  [focus, note] = [null, null];
  fillHead(panels, showTime);
  fillLegend(panels, scene.show);
  fitAgain(whole);
  // Keys stay in their row; the pointer stays where it is.
  const stay = ({ panel: { rows }, place: other, group: name }) => (label ? rows[other]?.label === label : name === group);
  if (!pointer && (label || group !== undefined)) arrive(scene.stops.find(stay), time);
  drawNow();
}

// Show what the page's address says, or everything.
function open() {
  follow = restore(scene, location.hash);
  setSwitches(scene);
  moves.keepInside(scene);
  fillLegend(panels, scene.show);
  drawNow();
}

fillHead(panels, showTime);
fillLegend(panels, scene.show);
makeSwitches(scene, redraw, regroup);
listen();
scene.theme = readTheme(page, base);
resize();
open();
performance.mark('first draw');
// Who waits for whom is found out before somebody asks.
setTimeout(() => panels.forEach((panel) => panel.places));
if (page.live === 'run') watchRun(replace);
if (page.live === 'plans') {
  const { rows } = panels[0];
  flip = tryPlans(rows.filter((row) => row.dead).map(serverOf), rows.map(serverOf), replace);
}

// For the console and for tests: a zoom step, and the places on the page of an instruction such as 1F0.2 and of a
// server's time.
window.schedule = {
  zoom,
  find,
  critical: (panel = 0) => criticalPath(panels[panel]).map((box) => panels[panel].text(box)),
  svg: () => svgOf(scene, base, lit()),
  png: () => pngOf(...canvases),
  place(text, panel = 0, iteration = 0) {
    const box = panels[panel].find(text, iteration);
    if (box < 0) return null;
    const bounds = plot.getBoundingClientRect();
    const found = scene.rectangle(panels[panel], box);
    return { ...found, x: found.x + bounds.left, y: found.y + bounds.top };
  },
  moment(label, time, panel = 0) {
    const row = panels[panel].rows.findIndex((each) => each.label === label);
    if (row < 0) return null;
    const bounds = plot.getBoundingClientRect();
    const top = scene.y(panels[panel].rowTop[row]);
    return { x: scene.x(time * panels[panel].scale) + bounds.left, y: top + scene.rowHeight / 2 + bounds.top };
  },
};
