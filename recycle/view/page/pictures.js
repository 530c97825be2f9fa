// What is seen as a file: pixels, or SVG for a paper.

import { draw, light } from './paint.js';
import { SvgPen } from './svgpen.js';

// The plot as SVG, with what is lit.
export function svgOf(scene, ruler, lit) {
  ruler.save();
  const pen = new SvgPen(scene.width, scene.height, ruler, scene.theme.hatches, scene.page.homes);
  draw(scene, pen);
  light(scene, pen, ...lit);
  ruler.restore();
  return pen.toString();
}

// The plot as PNG: a promise of a blob.
export function pngOf(...canvases) {
  const whole = document.createElement('canvas');
  [whole.width, whole.height] = [canvases[0].width, canvases[0].height];
  const pen = whole.getContext('2d');
  for (const canvas of canvases) pen.drawImage(canvas, 0, 0);
  return new Promise((done) => { whole.toBlob(done); });
}

export function save(blob, name) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
