// Drawing: a view of the panels on two canvases, the schedule below and what is lit above it.

const AXIS = 24;
const CROWD = 6000; // more boxes than this are painted as pixels
const SMALL = 8; // rows lower than this are, too

class Painter {
  constructor(panels, page) {
    this.panels = panels;
    this.page = page;
    this.base = document.getElementById('base').getContext('2d', { alpha: false });
    this.over = document.getElementById('over').getContext('2d');
    this.hidden = new Set();
    this.show = { transfers: false, memory: false };
    this.grouping = page.grouping;
    this.rowHeight = 24;
    this.from = 0; // time at the left edge of the plot
    this.perPixel = 1; // time per pixel
    this.top = 0; // pixels scrolled down
    this.colours();
  }

  // Colours of the theme, and the hatches of home pipelines.
  colours() {
    const style = getComputedStyle(document.documentElement);
    this.theme = {};
    for (const name of ['ground', 'ink', 'dim', 'rule', 'idle', 'dead', 'back', 'pause', 'boundary', 'lit', 'wrong']) {
      this.theme[name] = style.getPropertyValue(`--${name}`).trim();
    }
    this.words = this.page.ops.map((op) => word(op.fill));
    this.homeWords = this.page.homes.map(word);
    this.hatches = this.page.homes.map((colour) => {
      const tile = document.createElement('canvas');
      tile.width = tile.height = 6;
      const pen = tile.getContext('2d');
      pen.strokeStyle = colour;
      pen.lineWidth = 1.4;
      pen.globalAlpha = 0.75;
      for (const shift of [-6, 0, 6]) {
        pen.moveTo(shift, 6);
        pen.lineTo(shift + 6, 0);
      }
      pen.stroke();
      return this.base.createPattern(tile, 'repeat');
    });
  }

  // Order the rows and give each its place, in pixels from the top of everything.
  layout() {
    const gap = this.gap(this.rowHeight);
    const key = (row) => row[this.grouping];
    const labels = this.panels.flatMap((panel) => panel.rows.map((row) => row.label.length));
    this.left = 22 + 7.2 * Math.max(9, ...labels.length < 20000 ? labels : [9]);
    this.right = this.width > 640 ? 150 : 0;
    this.lines = [];
    this.groups = [];
    let y = 0;
    for (const panel of this.panels) {
      panel.top = y;
      y += this.panels.length > 1 ? 20 : 0;
      panel.first = y;
      const order = panel.rows.map((row, place) => place);
      order.sort((one, other) => key(panel.rows[one]) - key(panel.rows[other]) || one - other);
      let last = null;
      panel.rowTop = new Float64Array(panel.rows.length);
      for (const place of order) {
        const group = key(panel.rows[place]);
        if (group !== last) {
          y += gap;
          this.groups.push({ panel, group, top: y, bottom: y });
          last = group;
        }
        panel.rowTop[place] = y;
        this.lines.push({ panel, place, top: y });
        y += this.rowHeight;
        this.groups.at(-1).bottom = y;
      }
      y += gap;
      panel.bottom = y;
    }
    this.length = y;
  }

  // What stands between two groups of rows.
  gap(rowHeight) {
    return Math.max(2, Math.min(22, rowHeight));
  }

  resize() {
    const { clientWidth, clientHeight } = this.base.canvas.parentElement;
    this.ratio = window.devicePixelRatio || 1;
    this.width = clientWidth;
    this.height = clientHeight;
    for (const pen of [this.base, this.over]) {
      pen.canvas.width = Math.round(clientWidth * this.ratio);
      pen.canvas.height = Math.round(clientHeight * this.ratio);
    }
    this.layout();
  }

  // Show everything: all of the time, and all rows if they can be told apart.
  fit() {
    const end = Math.max(...this.panels.map((panel) => panel.end * panel.scale), 1e-9);
    const rows = this.panels.reduce((sum, panel) => sum + panel.rows.length, 0);
    this.layout();
    this.from = 0;
    this.top = 0;
    this.perPixel = end / Math.max(50, this.width - this.left - this.right - 12);
    const gaps = this.groups.length + this.panels.length;
    const room = this.height - AXIS - this.panels.length * 20;
    this.rowHeight = 26;
    while (this.rowHeight > 1 && rows * this.rowHeight + gaps * this.gap(this.rowHeight) > room) this.rowHeight--;
    this.fitted = this.rowHeight;
    this.layout();
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
      if (this.y(this.lines[middle].top) + this.rowHeight > AXIS) high = middle;
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

  // What is at a place of the canvas: a box, a row, or nothing.
  at(x, y) {
    if (x < 0 || x > this.width || y < AXIS) return null;
    for (const { panel, place, top } of this.seen()) {
      const high = this.y(top);
      if (y < high || y >= high + this.rowHeight) continue;
      const row = panel.rows[place];
      if (x < this.left || x > this.edge) return { panel, row, box: -1 };
      const time = this.time(x) / panel.scale;
      const after = firstAbove(panel.boxes.end, time, row.boxes.from, row.boxes.to);
      const hit = after < row.boxes.to && panel.boxes.start[after] <= time && this.visible(panel, after);
      return { panel, row, box: hit ? after : -1 };
    }
    return null;
  }

  visible(panel, box) {
    return !this.hidden.has(panel.boxes.op[box]);
  }

  rectangle(panel, box) {
    const x = this.x(panel.begins(box));
    return {
      x,
      y: this.y(panel.rowTop[panel.rowOf[box]]),
      width: Math.max(1, this.x(panel.stops(box)) - x),
      height: this.rowHeight - (this.rowHeight > 6 ? 3 : 0),
    };
  }

  draw() {
    const pen = this.base;
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.fillStyle = this.theme.ground;
    pen.fillRect(0, 0, this.width, this.height);
    const lines = [...this.seen()];
    const ranges = lines.map(({ panel, place }) => this.range(panel, panel.rows[place]));
    const count = ranges.reduce((sum, [from, to]) => sum + to - from, 0);
    this.crowded = count > CROWD || this.rowHeight < SMALL;
    pen.save();
    this.clip(pen);
    if (this.crowded) {
      this.pixels(lines, ranges);
    } else {
      this.grid(pen);
      lines.forEach((line, place) => this.row(pen, line, ranges[place]));
    }
    lines.forEach((line) => this.outages(pen, line));
    lines.forEach((line) => this.pauses(pen, line));
    if (this.show.memory && this.rowHeight >= 5) lines.forEach((line) => this.memory(pen, line));
    if (this.show.transfers) lines.forEach((line, place) => this.transfers(pen, line, ranges[place]));
    this.boundaries(pen);
    if (this.grouping === 'stage') this.windows(pen);
    this.views(pen);
    this.viewNames(pen);
    pen.restore();
    this.margins(pen, lines);
    this.axis(pen);
  }

  clip(pen) {
    pen.beginPath();
    pen.rect(this.left, AXIS, this.edge - this.left, this.height - AXIS);
    pen.clip();
  }

  grid(pen) {
    pen.fillStyle = this.theme.rule;
    for (const tick of this.ticks()) pen.fillRect(Math.round(this.x(tick)), AXIS, 1, this.height);
  }

  row(pen, { panel, place, top }, [from, to]) {
    const row = panel.rows[place];
    const y = this.y(top);
    const height = this.rowHeight - 3;
    const first = Math.max(this.left, this.x(0));
    if (!row.dead || row.boxes.to > row.boxes.from) {
      pen.fillStyle = this.theme.idle;
      pen.fillRect(first, y, Math.max(0, Math.min(this.edge, this.x(panel.end * panel.scale)) - first), height);
    }
    for (let box = from; box < to; box++) {
      if (this.visible(panel, box)) this.box(pen, panel, box);
    }
  }

  box(pen, panel, box) {
    const op = this.page.ops[panel.boxes.op[box]];
    const { x, y, width, height } = this.rectangle(panel, box);
    const wide = Math.max(1, width - (width > 4 ? 1 : 0));
    pen.fillStyle = op.fill;
    pen.fillRect(x, y, wide, height);
    const moved = panel.rerouted(box);
    const home = panel.boxes.home[box] % this.page.homes.length;
    if (op.edges && height > 8) {
      pen.fillStyle = 'rgba(20,24,29,.75)';
      if (op.edges.includes('top')) pen.fillRect(x, y, wide, 2);
      if (op.edges.includes('bottom')) pen.fillRect(x, y + height - 2, wide, 2);
    }
    if (moved) {
      pen.fillStyle = this.hatches[home];
      pen.fillRect(x, y, wide, height);
      if (wide > 5) {
        pen.strokeStyle = this.page.homes[home];
        pen.lineWidth = 2.5;
        pen.strokeRect(x + 1.25, y + 1.25, wide - 2.5, height - 2.5);
      }
    }
    if (panel.change?.[box] && wide > 3) this.corner(pen, panel.change[box], x, y, wide, height);
    if (panel.wrong[box]) this.wrong(pen, x, y, wide, height);
    if (height < 10 || wide < 8) return;
    let label = op.update ? op.name.toLowerCase() : String(panel.boxes.microBatch[box]);
    if (moved && wide >= 7 * (label.length + 2.5)) label = `${panel.boxes.home[box]}.${label}`;
    if (wide < 6.6 * label.length) return;
    const font = Math.min(11, height - 4);
    pen.font = `${moved ? 'bold ' : ''}${font}px "DejaVu Sans", Verdana, sans-serif`;
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
  corner(pen, change, x, y, width, height) {
    const size = Math.min(width, height) * (this.page.changes[change] === 'reordered' ? 0.3 : 0.55);
    pen.fillStyle = this.theme.lit;
    pen.beginPath();
    pen.moveTo(x + width, y);
    pen.lineTo(x + width - size, y);
    if (this.page.changes[change] === 'new') pen.lineTo(x + width - size, y + size);
    pen.lineTo(x + width, y + size);
    pen.fill();
  }

  wrong(pen, x, y, width, height) {
    this.cross(pen, x, y, width, height, this.theme.wrong);
    pen.strokeRect(x, y, width, height);
  }

  cross(pen, x, y, width, height, colour) {
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
  pixels(lines, ranges) {
    const ratio = this.ratio;
    const x0 = Math.round(this.left * ratio);
    const y0 = Math.round(AXIS * ratio);
    const width = Math.max(1, Math.round(this.edge * ratio) - x0);
    const height = Math.max(1, Math.round(this.height * ratio) - y0);
    const image = this.base.createImageData(width, height);
    const dots = new Uint32Array(image.data.buffer);
    dots.fill(word(this.theme.ground));
    const idle = word(this.theme.idle);
    lines.forEach(({ panel, place, top }, number) => {
      const row = panel.rows[place];
      const high = Math.round(this.y(top) * ratio) - y0;
      const low = Math.max(high + 1, Math.round((this.y(top) + this.rowHeight) * ratio) - y0 - (this.rowHeight > 3 ? 1 : 0));
      const first = Math.max(0, high) * width;
      const rows = Math.min(height, low) - Math.max(0, high);
      if (rows <= 0 || (row.dead && row.boxes.from === row.boxes.to)) return;
      const { boxes, scale } = panel;
      const pace = (scale * ratio) / this.perPixel;
      const shift = -(this.from * ratio) / this.perPixel;
      dots.fill(idle, first + Math.max(0, Math.round(shift)), first + Math.min(width, Math.max(0, Math.round(panel.end * pace + shift))));
      const [from, to] = ranges[number];
      for (let box = from; box < to; box++) {
        const op = boxes.op[box];
        if (this.hidden.has(op)) continue;
        const begin = Math.max(0, Math.round(boxes.start[box] * pace + shift));
        const end = Math.min(width, Math.max(begin + 1, Math.round(boxes.end[box] * pace + shift)));
        dots.fill(this.words[op], first + begin, first + end);
        const home = boxes.home[box];
        if (home >= 0 && home !== row.home) {
          const colour = this.homeWords[home % this.homeWords.length];
          for (let x = begin + ((high + begin) & 1); x < end; x += 2) dots[first + x] = colour;
        }
      }
      for (let line = 1; line < rows; line++) dots.copyWithin(first + line * width, first, first + width);
    });
    this.base.putImageData(image, x0, y0);
  }
}

// A colour #rrggbb as a pixel of an image.
function word(colour) {
  const value = parseInt(colour.slice(1), 16);
  return (0xff000000 | ((value & 0xff) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}
