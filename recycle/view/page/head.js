// The head of the page, and its switches.

import { timeText } from './times.js';

export function make(tag, text = '', parent = null) {
  const element = document.createElement(tag);
  element.textContent = text;
  parent?.append(element);
  return element;
}

// What the schedules are, with their figures, and of runs what happened in them;
// ``show`` is called with the panel and the time of an event that is chosen.
export function fillHead(panels, show) {
  const header = document.getElementById('head');
  header.replaceChildren();
  panels.forEach((panel, place) => {
    make(place ? 'h2' : 'h1', panels.length > 1 ? `${panel.name}: ${panel.title}` : panel.title, header);
    const facts = make('dl', '', header);
    facts.className = 'facts';
    for (const [name, value] of panel.facts) {
      const fact = make('div', '', facts);
      make('dt', name, fact);
      make('dd', value, fact);
    }
    if (panel.events.length || panel.summary.length) fillEvents(panel, header, show);
  });
}

function fillEvents(panel, header, show) {
  const known = document.querySelector('details.events')?.open;
  const details = make('details', '', header);
  details.className = 'events';
  details.open = known ?? false;
  make('summary', panel.summary.length ? panel.summary.join('; ') : `${panel.events.length} events`, details);
  const list = make('ol', '', details);
  for (const [time, text] of panel.events) {
    const item = make('li', '', list);
    const button = make('button', timeText(time, panel.timeUnit), item);
    button.type = 'button';
    button.addEventListener('click', () => show(panel, time));
    make('span', text, item);
  }
}

// Switches for what the scene shows; each calls ``redraw``, or ``regroup`` where the rows move.
export function makeSwitches(scene, redraw, regroup) {
  const { panels, page } = scene;
  const used = new Set();
  for (const { boxes } of panels) {
    boxes.op.forEach((op, box) => boxes.end[box] > boxes.start[box] && used.add(op));
  }
  const ops = document.getElementById('ops');
  page.ops.forEach((op, number) => {
    if (!used.has(number) && !(page.live && (op.update || op.phases.length))) return;
    const label = make('label', '', ops);
    label.title = op.meaning;
    const box = make('input', '', label);
    box.type = 'checkbox';
    box.name = op.name;
    box.addEventListener('change', () => {
      if (box.checked) scene.hidden.delete(number);
      else scene.hidden.add(number);
      redraw();
    });
    const swatch = make('span', '', label);
    swatch.className = `swatch ${op.edges}`;
    swatch.style.background = op.fill;
    make('span', op.name.length === 1 ? `${op.name} ${op.meaning}` : op.meaning, label);
  });
  for (const name of Object.keys(scene.show)) {
    document.getElementById(name).addEventListener('change', (event) => {
      scene.show[name] = event.target.checked;
      if (name === 'memory') regroup();
      else redraw();
    });
  }
  document.getElementById('grouping').addEventListener('change', (event) => {
    scene.grouping = event.target.value;
    regroup();
  });
  document.getElementById('folded').addEventListener('change', (event) => {
    [scene.folded, scene.foldChosen] = [event.target.checked, true];
    regroup();
  });
  setSwitches(scene);
}

// Show on the switches what the scene shows.
export function setSwitches(scene) {
  scene.page.ops.forEach((op, number) => {
    const box = document.querySelector(`#ops input[name="${op.name}"]`);
    if (box) box.checked = !scene.hidden.has(number);
  });
  for (const name of Object.keys(scene.show)) document.getElementById(name).checked = scene.show[name];
  document.getElementById('grouping').value = scene.grouping;
  document.getElementById('folded').checked = scene.folded;
}
