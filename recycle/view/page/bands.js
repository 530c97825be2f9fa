// Folded groups: of all servers of a stage or a pipeline, how many do what at each time, and whose work is not their own.

import { AXIS } from './scene.js';
import { word } from './theme.js';

const STRIP = 5; // pixels at the top of a band for re-routed work

// What a group's servers do, per pixel of time: by op the servers that are at it, and the home of work that was re-routed.
function count(scene, { panel, places }, width) {
  const [ops, gone] = [scene.page.ops.length + 1, scene.page.ops.length]; // the last is for what was in vain
  const sums = new Float32Array(width * ops);
  const moved = new Int32Array(width).fill(-1);
  const pace = (panel.scale * scene.ratio) / scene.perPixel;
  const shift = (-scene.from * scene.ratio) / scene.perPixel;
  for (const place of places) {
    const row = panel.rows[place];
    const [from, to] = scene.range(panel, row);
    for (let box = from; box < to; box++) {
      if (!scene.visible(panel, box)) continue;
      const op = panel.void?.[box] ? gone : panel.boxes.op[box];
      const begin = Math.max(0, panel.boxes.start[box] * pace + shift);
      const end = Math.min(width - 1e-6, panel.boxes.end[box] * pace + shift);
      if (end <= begin) continue;
      const [first, last] = [Math.floor(begin), Math.floor(end)];
      for (let x = first; x <= last; x++) sums[x * ops + op] += Math.min(x + 1, end) - Math.max(x, begin);
      if (panel.rerouted(box)) moved.fill(panel.boxes.home[box], first, last + 1);
    }
  }
  return { sums, moved };
}

// Stacked from below, each op as high as its share of the servers; the dead ones leave the top empty.
export function drawBand(scene, pen, band) {
  const { ratio, theme } = scene;
  const x0 = Math.round(scene.left * ratio);
  const width = Math.max(1, Math.round(scene.edge * ratio) - x0);
  const top = Math.round(scene.y(band.top) * ratio);
  const height = Math.round((scene.band - 2) * ratio);
  const from = Math.max(0, Math.round(AXIS * ratio) - top);
  const to = Math.min(height, Math.round(scene.height * ratio) - top);
  if (to <= from) return;
  const image = pen.createImageData(width, to - from);
  const dots = new Uint32Array(image.data.buffer);
  const { sums, moved } = count(scene, band, width);
  const ops = scene.page.ops.length + 1;
  const strip = Math.round(Math.min(STRIP, scene.band / 4) * ratio);
  const [ground, idle, gone] = [word(theme.ground), word(theme.idle), word(theme.void)];
  for (let x = 0; x < width; x++) {
    let level = height;
    let total = 0;
    for (let op = 0; op <= ops; op++) {
      total += op < ops ? sums[x * ops + op] : band.places.length;
      const next = Math.max(strip, Math.round(height - ((height - strip) * total) / band.places.length));
      const colour = op < ops ? (theme.words[op] ?? gone) : idle;
      for (let y = Math.min(level, to) - 1; y >= Math.max(next, from); y--) dots[(y - from) * width + x] = colour;
      level = next;
    }
    const colour = moved[x] < 0 ? ground : theme.stripWords[moved[x] % theme.stripWords.length];
    for (let y = from; y < Math.min(strip, to); y++) dots[(y - from) * width + x] = colour;
  }
  pen.putImageData(image, x0, top + from);
}

// The names of bands, with how many servers they stand for and how many of those died.
export function drawBandNames(scene, pen) {
  pen.textAlign = 'left';
  pen.textBaseline = 'middle';
  for (const { panel, group, places, top } of scene.bands) {
    const y = scene.y(top);
    if (y + scene.band < AXIS || y > scene.height) continue;
    const dead = places.filter((place) => panel.rows[place].dead).length;
    const sign = scene.opened.has(scene.name(panel, group)) ? '\u25be' : '\u25b8';
    const two = scene.band >= 26;
    pen.font = 'bold 11px "DejaVu Sans", Verdana, sans-serif';
    pen.fillStyle = scene.theme.ink;
    pen.fillText(`${sign} ${scene.grouping} ${group}`, 10, y + (two ? scene.band * 0.3 : scene.band / 2));
    if (dead) {
      pen.fillStyle = scene.theme.dead;
      pen.fillRect(0, y, 6, scene.band - 2);
    }
    if (!two) continue;
    pen.font = '11px "DejaVu Sans", Verdana, sans-serif';
    pen.fillStyle = dead ? scene.theme.dead : scene.theme.dim;
    const live = places.length - dead;
    pen.fillText(dead ? `${live} of ${places.length} live` : `${places.length} servers`, 22, y + scene.band * 0.72);
  }
}

// What is said of a band at a time.
export function describeBand(scene, { panel, group, places }, time) {
  const counts = new Map();
  let moved = 0;
  for (const place of places) {
    const box = scene.boxAt(panel, panel.rows[place], time / panel.scale);
    const work = box < 0 ? '' : panel.void?.[box] ? 'void' : scene.page.ops[panel.boxes.op[box]].name;
    const name = work || (panel.rows[place].dead ? 'dead' : 'idle');
    counts.set(name, (counts.get(name) ?? 0) + 1);
    moved += box >= 0 && panel.rerouted(box);
  }
  const said = [...counts].sort((one, other) => other[1] - one[1]).map(([name, number]) => `${number} ${name}`);
  const lines = [`of ${places.length} servers ${said.join(', ')}`];
  if (moved) lines.push(`${moved} at re-routed work`);
  return { label: `${scene.grouping} ${group}`, texts: [...lines, 'a click shows its servers'] };
}
