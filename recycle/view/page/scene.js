// What is shown of the schedules, in which colours, and where: rows and times as places on the canvas, and back.

import { firstAbove } from './model.js';
import { someTime } from './times.js';

export const AXIS = 24; // pixels for the times along the top
export const CURVE = 58; // pixels for a curve over time, such as the loss, with its name above it
const TITLE = 20; // pixels for the name of one of several panels
export const LEGIBLE = 11; // pixels of a row with text, which is as high
const READABLE = 16; // pixels of a row in which a name can be read
const LEAST = 5; // where rows would be lower than this, groups are folded

export class Scene {
  constructor(panels, page) {
    this.panels = panels;
    this.page = page;
    this.theme = null; // as readTheme gives it
    this.grouping = page.grouping;
    this.folded = false; // a band per group instead of a row per server
    this.foldChosen = false; // by the user or the address, and not by how many rows there are
    this.opened = new Set(); // groups whose rows are shown all the same
    this.hidden = new Set(); // the numbers of ops that are not shown
    this.show = { transfers: false, memory: false, critical: false };
    this.rowHeight = 24;
    this.from = 0; // time at the left edge of the plot
    this.perPixel = 1; // time per pixel
    this.top = 0; // pixels scrolled down
    this.fittedBand = 30; // pixels of a folded group beside rows that can be read
    this.columns = []; // figures behind the rows, each with how far its right edge is from the plot's
  }

  // Pixels for the memory of a row, below its boxes.
  get lane() {
    return this.show.memory && this.rowHeight >= LEGIBLE ? Math.max(14, Math.round(this.rowHeight * 0.9)) : 0;
  }

  // Pixels from row to row.
  get pitch() {
    return this.rowHeight + this.lane;
  }

  // Pixels of a folded group; they grow with the rows.
  get band() {
    return Math.max(10, (this.fittedBand * this.rowHeight) / READABLE);
  }

  // Order the rows and give each its place, in pixels from the top of everything.
  layout() {
    const gap = this.gap(this.rowHeight);
    const labels = this.panels.flatMap((panel) => panel.rows.map((row) => row.label.length));
    this.left = 22 + 7.4 * labels.reduce((most, each) => Math.max(most, each), 10);
    this.columns = this.width > 640 ? this.figures() : [];
    this.right = this.columns.length ? this.columns.at(-1).right + 12 : 0;
    this.lines = [];
    this.bands = [];
    this.groups = [];
    let y = 0;
    for (const panel of this.panels) {
      panel.top = y;
      y += this.panels.length > 1 ? TITLE : 0;
      panel.curveTop = y;
      y += panel.curves.length * CURVE;
      panel.rowsTop = y;
      panel.rowTop = new Float64Array(panel.rows.length);
      panel.inBand = new Uint8Array(panel.rows.length);
      for (const [group, places] of this.grouped(panel)) {
        y += gap;
        const top = y;
        let shown = places;
        if (this.folded) {
          this.bands.push({ panel, group, places, top: y });
          shown = this.opened.has(this.name(panel, group)) ? places : places.filter((place) => panel.rows[place].outages.length);
          for (const place of places) [panel.rowTop[place], panel.inBand[place]] = [y, 1];
          y += this.band + 2;
        }
        for (const place of shown) {
          [panel.rowTop[place], panel.inBand[place]] = [y, 0];
          this.lines.push({ panel, place, top: y });
          y += this.pitch;
        }
        this.groups.push({ panel, group, top, bottom: y });
      }
      y += gap;
      panel.bottom = y;
    }
    this.length = y;
  }

  // Where keys stop, from the top: rows and bands.
  get stops() {
    return [...this.bands, ...this.lines].sort((one, other) => one.top - other.top);
  }

  // The rows of a panel in the order in which they stand, by group.
  grouped(panel) {
    const key = (place) => panel.rows[place][this.grouping];
    const order = panel.rows.map((row, place) => place);
    order.sort((one, other) => key(one) - key(other) || one - other);
    const found = new Map();
    for (const place of order) {
      if (!found.has(key(place))) found.set(key(place), []);
      found.get(key(place)).push(place);
    }
    return found;
  }

  // What a group is called among those that are open.
  name(panel, group) {
    return `${this.panels.indexOf(panel)}.${group}`;
  }

  // The figures behind the rows, as wide as their longest text.
  figures() {
    let right = 2;
    return ['busy', 'bubble', 'memory'].map((name) => {
      const texts = this.panels.flatMap((panel) => panel.rows.map((row) => row[name].length));
      right += 12 + 7 * texts.reduce((most, each) => Math.max(most, each), name.length);
      return { name, right };
    });
  }

  // What stands between two groups of rows.
  gap(rowHeight) {
    return this.folded ? 6 : Math.max(2, Math.min(22, rowHeight));
  }

  // Take another size, in pixels of the page, of which each is so many of the canvas.
  resize(width, height, ratio) {
    this.width = width;
    this.height = height;
    this.ratio = ratio;
    this.layout();
  }

  get end() {
    const end = Math.max(...this.panels.map((panel) => panel.end * panel.scale), 0);
    return end || someTime(this.page.unit);
  }

  // Pixels for all of the time.
  get room() {
    return Math.max(50, this.width - this.left - this.right - 12);
  }

  // Whether everything is shown, and nobody has zoomed.
  get whole() {
    return this.from === 0 && this.perPixel >= this.end / this.room && this.rowHeight === this.fitted;
  }

  // Show everything: all of the time, and all rows if they can be told apart.
  fit() {
    if (!this.foldChosen) this.folded = this.crowded;
    this.layout();
    this.from = 0;
    this.top = 0;
    this.perPixel = this.end / this.room;
    if (this.folded) {
      this.rowHeight = READABLE;
      this.enlarge('fittedBand', 12, 60);
    } else {
      this.enlarge('rowHeight', this.show.memory ? 12 : 1, 26);
    }
    this.fitted = this.rowHeight;
  }

  // Give one of the heights its largest value with which all rows are in sight, or the least.
  enlarge(name, least, most) {
    let [low, high] = [least, most];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      this[name] = middle;
      this.layout();
      if (this.length <= this.height - AXIS) low = middle;
      else high = middle - 1;
    }
    this[name] = low;
    this.layout();
  }

  // Whether there are more rows than can be told apart.
  get crowded() {
    const rows = this.panels.reduce((sum, panel) => sum + panel.rows.length, 0);
    return rows * LEAST > this.height - AXIS;
  }

  x(time) {
    return this.left + (time - this.from) / this.perPixel;
  }

  time(x) {
    return this.from + (x - this.left) * this.perPixel;
  }

  y(top) {
    return AXIS + top - this.top;
  }

  get edge() {
    return this.width - this.right;
  }

  // The lines of rows that are in sight.
  *seen() {
    let low = 0;
    let high = this.lines.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.y(this.lines[middle].top) + this.pitch > AXIS) high = middle;
      else low = middle + 1;
    }
    for (let place = low; place < this.lines.length && this.y(this.lines[place].top) < this.height; place++) {
      yield this.lines[place];
    }
  }

  // The boxes of a row that are in sight, as a range.
  range(panel, row) {
    const { boxes, scale } = panel;
    const from = firstAbove(boxes.end, this.from / scale, row.boxes.from, row.boxes.to);
    const to = firstAbove(boxes.start, this.time(this.edge) / scale, from, row.boxes.to);
    return [from, to];
  }

  // What is at a place of the canvas: a box, a row, a band, or nothing.
  at(x, y) {
    if (x < 0 || x > this.width || y < AXIS) return null;
    for (const { panel, place, top } of this.seen()) {
      const high = this.y(top);
      if (y < high || y >= high + this.pitch) continue;
      const row = panel.rows[place];
      if (x < this.left || x > this.edge || y >= high + this.rowHeight) return { panel, row, box: -1 };
      return { panel, row, box: this.boxAt(panel, row, this.time(x) / panel.scale) };
    }
    const band = this.bands.find(({ top }) => y >= this.y(top) && y < this.y(top) + this.band);
    return band ? { panel: band.panel, row: null, box: -1, band } : null;
  }

  // The box that a row has at a time, in the panel's own units; -1 if it has none that is shown.
  boxAt(panel, row, time) {
    const after = firstAbove(panel.boxes.end, time, row.boxes.from, row.boxes.to);
    const hit = after < row.boxes.to && panel.boxes.start[after] <= time && this.visible(panel, after);
    return hit ? after : -1;
  }

  visible(panel, box) {
    return !this.hidden.has(panel.boxes.op[box]);
  }

  rectangle(panel, box) {
    const x = this.x(panel.begins(box));
    const place = panel.rowOf[box];
    const height = panel.inBand[place] ? this.band : this.rowHeight;
    return {
      x,
      y: this.y(panel.rowTop[place]),
      width: Math.max(1, this.x(panel.stops(box)) - x),
      height: height - (height > 6 ? 3 : 0),
    };
  }

  // Round times about a hundred pixels apart.
  ticks() {
    const rough = this.perPixel * 90;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
    const found = [];
    for (let tick = Math.max(0, Math.ceil(this.from / step)); tick * step <= this.time(this.edge); tick++) found.push(tick * step);
    return found;
  }
}
