// The tip: what is said of the box that is pointed at, or of a place that has none.

import { make } from './head.js';
import { lengthText, timeText } from './times.js';

const tip = document.getElementById('tip');

// Say what a box waits for and who waits for it; of no box, what the note says; and without both nothing.
export function explain(scene, focus, note) {
  tip.style.display = focus || note ? 'block' : 'none';
  if (!focus) {
    if (note) {
      tip.replaceChildren();
      make('strong', note.label, tip);
      make('span', note.texts.join('\n'), tip);
      beside(scene, note.x + 12, note.y + 14, note.y - 6);
    }
    return;
  }
  const { panel, box } = focus;
  const op = scene.page.ops[panel.boxes.op[box]];
  const row = panel.rows[panel.rowOf[box]];
  const length = panel.boxes.end[box] - panel.boxes.start[box];
  const say = (time) => timeText(time, panel.timeUnit);
  const place = (other) => `${panel.text(other)} on ${panel.rows[panel.rowOf[other]].label} (until ${say(panel.boxes.end[other])})`;
  const begin = (other) => `${panel.text(other)} on ${panel.rows[panel.rowOf[other]].label} (at ${say(panel.boxes.start[other])})`;
  tip.replaceChildren();
  make('strong', `${panel.text(box)} on ${row.label}`, tip);
  const lines = [
    `${op.meaning}, ${say(panel.boxes.start[box])} to ${say(panel.boxes.end[box])} (${lengthText(length, panel.timeUnit)})`,
  ];
  if (panel.iterations > 1) lines.push(`iteration ${panel.boxes.iteration[box] + panel.first + 1}`);
  if (panel.rerouted(box)) lines.push(`re-routed from pipeline ${panel.boxes.home[box]}`);
  if (panel.void?.[box]) lines.push('void: the iteration was given up, and made again in a later view');
  const needs = panel.needs(box);
  const before = box > row.boxes.from ? box - 1 : -1;
  if (needs.length) lines.push(`waits for ${needs.map(place).join(', ')}`);
  if (before >= 0 && !needs.includes(before)) lines.push(`follows ${place(before)}`);
  const awaited = panel.awaited(box);
  if (awaited.length) lines.push(`awaited by ${awaited.map(begin).join(', ')}`);
  if (panel.change?.[box]) {
    const words = { new: 'only in this one', moved: 'on another server above', reordered: 'in another order above' };
    lines.push(words[scene.page.changes[panel.change[box]]]);
  }
  make('span', lines.join('\n'), tip);
  const { x, y, width, height } = scene.rectangle(panel, box);
  beside(scene, x + width + 10, y + height + 8, y - 8);
}

// Put the tip at a place across, below one height or, where there is no room, above another.
function beside(scene, across, below, above) {
  tip.style.left = `${Math.max(4, Math.min(across, scene.width - tip.offsetWidth - 8))}px`;
  tip.style.top = `${below + tip.offsetHeight < scene.height ? below : Math.max(4, above - tip.offsetHeight)}px`;
}
