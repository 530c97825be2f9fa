// Boxes: each with its colours, label and marks, or many as pixels.

import { AXIS } from './scene.js';
import { word } from './theme.js';

export function drawRow(scene, pen, { panel, place, top }, [from, to]) {
  const row = panel.rows[place];
  const y = scene.y(top);
  const height = scene.rowHeight - 3;
  const first = Math.max(scene.left, scene.x(0));
  if (!row.dead || row.boxes.to > row.boxes.from) {
    pen.fillStyle = scene.theme.idle;
    pen.fillRect(first, y, Math.max(0, Math.min(scene.edge, scene.x(panel.end * panel.scale)) - first), height);
  }
  for (const [start, end] of row.unrecorded) {
    const x = scene.x(start * panel.scale);
    drawVoid(scene, pen, x, y, Math.max(1, scene.x(end * panel.scale) - x), height);
  }
  for (let box = from; box < to; box++) {
    if (scene.visible(panel, box)) drawBox(scene, pen, panel, box);
  }
}

export function drawBox(scene, pen, panel, box) {
  const op = scene.page.ops[panel.boxes.op[box]];
  const { x, y, width, height } = scene.rectangle(panel, box);
  const wide = Math.max(1, width - (width > 4 ? 1 : 0));
  pen.fillStyle = op.fill;
  pen.fillRect(x, y, wide, height);
  const moved = panel.rerouted(box);
  const home = panel.boxes.home[box] % scene.page.homes.length;
  if (op.edges && height > 8) {
    pen.fillStyle = 'rgba(20,24,29,.75)';
    if (op.edges.includes('top')) pen.fillRect(x, y, wide, 2);
    if (op.edges.includes('bottom')) pen.fillRect(x, y + height - 2, wide, 2);
  }
  if (panel.void?.[box]) drawVoid(scene, pen, x, y, wide, height);
  else if (moved) {
    pen.fillStyle = scene.theme.hatches[home];
    pen.fillRect(x, y, wide, height);
    if (wide > 5) {
      pen.strokeStyle = scene.page.homes[home];
      pen.lineWidth = 2.5;
      pen.strokeRect(x + 1.25, y + 1.25, wide - 2.5, height - 2.5);
    }
  }
  if (panel.change?.[box] && wide > 3) drawCorner(scene, pen, panel.change[box], x, y, wide, height);
  if (height < 10 || wide < 8 || panel.void?.[box]) return;
  let label = op.update ? op.name.toLowerCase() : String(panel.boxes.microBatch[box]);
  if (moved && wide >= 7 * (label.length + 2.5)) label = `${panel.boxes.home[box]}.${label}`;
  if (wide < 6.6 * label.length) return;
  pen.font = `${moved ? 'bold ' : ''}11px "DejaVu Sans", Verdana, sans-serif`;
  pen.textAlign = 'center';
  pen.textBaseline = 'middle';
  if (moved) {
    pen.strokeStyle = op.fill;
    pen.lineWidth = 3;
    pen.strokeText(label, x + wide / 2, y + height / 2 + 0.5);
  }
  pen.fillStyle = op.ink;
  pen.fillText(label, x + wide / 2, y + height / 2 + 0.5);
}

// A corner says that the panel above has this elsewhere (full), in another order (small) or not at all (square).
function drawCorner(scene, pen, change, x, y, width, height) {
  const size = Math.min(width, height) * (scene.page.changes[change] === 'reordered' ? 0.3 : 0.55);
  pen.fillStyle = scene.theme.lit;
  pen.beginPath();
  pen.moveTo(x + width, y);
  pen.lineTo(x + width - size, y);
  if (scene.page.changes[change] === 'new') pen.lineTo(x + width - size, y + size);
  pen.lineTo(x + width, y + size);
  pen.fill();
}

// What was computed in vain: pale, with a line through it.
export function drawVoid(scene, pen, x, y, width, height) {
  pen.fillStyle = scene.theme.veil;
  pen.fillRect(x, y, width, height);
  pen.fillStyle = scene.theme.void;
  pen.fillRect(x, y + height / 2 - 1, width, 2);
}

export function drawCross(scene, pen, x, y, width, height, colour) {
  pen.strokeStyle = colour;
  pen.lineWidth = 2.5;
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x + width, y + height);
  pen.moveTo(x + width, y);
  pen.lineTo(x, y + height);
  pen.stroke();
}

// Many boxes: straight into the pixels of the plot, re-routed ones dotted with the colour of their home.
export function drawPixels(scene, pen, lines, ranges) {
  const ratio = scene.ratio;
  const x0 = Math.round(scene.left * ratio);
  const y0 = Math.round(AXIS * ratio);
  const width = Math.max(1, Math.round(scene.edge * ratio) - x0);
  const height = Math.max(1, Math.round(scene.height * ratio) - y0);
  const image = pen.createImageData(width, height);
  const dots = new Uint32Array(image.data.buffer);
  dots.fill(word(scene.theme.ground));
  const [idle, gone] = [word(scene.theme.idle), word(scene.theme.void)];
  lines.forEach(({ panel, place, top }, number) => {
    const row = panel.rows[place];
    const high = Math.round(scene.y(top) * ratio) - y0;
    const low = Math.max(high + 1, Math.round((scene.y(top) + scene.rowHeight) * ratio) - y0 - (scene.rowHeight > 3 ? 1 : 0));
    const first = Math.max(0, high) * width;
    const rows = Math.min(height, low) - Math.max(0, high);
    if (rows <= 0 || (row.dead && row.boxes.from === row.boxes.to)) return;
    const { boxes, scale } = panel;
    const pace = (scale * ratio) / scene.perPixel;
    const shift = -(scene.from * ratio) / scene.perPixel;
    dots.fill(idle, first + Math.max(0, Math.round(shift)), first + Math.min(width, Math.max(0, Math.round(panel.end * pace + shift))));
    const [from, to] = ranges[number];
    for (let box = from; box < to; box++) {
      const op = boxes.op[box];
      if (scene.hidden.has(op)) continue;
      const begin = Math.max(0, Math.round(boxes.start[box] * pace + shift));
      const end = Math.min(width, Math.max(begin + 1, Math.round(boxes.end[box] * pace + shift)));
      dots.fill(scene.theme.words[op], first + begin, first + end);
      if (panel.void?.[box]) for (let x = begin; x < end; x++) if ((x + high) % 3) dots[first + x] = gone;
      const home = boxes.home[box];
      if (home >= 0 && home !== row.home) {
        const colour = scene.theme.homeWords[home % scene.theme.homeWords.length];
        for (let x = begin + ((high + begin) & 1); x < end; x += 2) dots[first + x] = colour;
      }
    }
    for (let line = 1; line < rows; line++) dots.copyWithin(first + line * width, first, first + width);
  });
  pen.putImageData(image, x0, y0);
}
