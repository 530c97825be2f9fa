// The schedules of the page: columns of numbers per panel, and who waits for whom.

const TYPES = { B: Uint8Array, i: Int32Array, d: Float64Array };

function column(text, type) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let place = 0; place < letters.length; place++) bytes[place] = letters.charCodeAt(place);
  return new TYPES[type](bytes.buffer);
}

function columns(packed) {
  const op = column(packed.op, 'B');
  return {
    op,
    home: column(packed.home, 'i'),
    microBatch: column(packed.microBatch, 'i'),
    chunk: packed.chunk ? column(packed.chunk, 'i') : null, // where it is not the stage of the row
    iteration: packed.iteration ? column(packed.iteration, 'i') : new Int32Array(op.length),
    start: column(packed.start.data, packed.start.type),
    end: column(packed.end.data, packed.end.type),
  };
}

// The first place in values[from, to) that is above a limit; values rise.
export function firstAbove(values, limit, from, to) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (values[middle] > limit) to = middle;
    else from = middle + 1;
  }
  return from;
}

export class Panel {
  constructor(packed, ops, changes) {
    Object.assign(this, packed);
    this.ops = ops;
    this.scale = 1 / packed.pace;
    this.boxes = columns(packed.boxes);
    this.change = packed.changes ? column(packed.changes, 'B') : null;
    this.changeNames = changes;
    this.void = packed.void ? column(packed.void, 'B') : null; // whether a box was computed in vain
    this.transfers = columns(packed.transfers);
    this.samples = {
      time: column(packed.samples.time.data, packed.samples.time.type),
      memory: column(packed.samples.memory, 'd'),
    };
    const first = { boxes: 0, transfers: 0, samples: 0 };
    for (const row of this.rows) {
      for (const kind of Object.keys(first)) {
        row[kind] = { from: first[kind], to: first[kind] + row[kind] };
        first[kind] = row[kind].to;
      }
    }
    this.ends = {}; // per stage, when it ends each iteration
    this.turns = {}; // per stage, from when to when it takes each iteration, and how to call that
    for (const [stage, , start, end, caption] of this.windows) {
      (this.ends[stage] ??= []).push(end);
      (this.turns[stage] ??= []).push([start, end, caption]);
    }
    this.rowOf = new Int32Array(this.boxes.op.length);
    this.rows.forEach((row, place) => this.rowOf.fill(place, row.boxes.from, row.boxes.to));
    this.made = new Map(); // the numbers of the iterations that were made in each view, in the index
    this.begun = Float64Array.from(this.views, ([time]) => time);
    this.moved = null;
    this.mostMemory = this.rows.reduce((most, row) => Math.max(most, row.limit ?? row.peak ?? 0), 1);
  }

  // The box of every phase of every micro-batch, -1 where there is none; found out when it is first asked for.
  get places() {
    if (!this.index) {
      const { boxes, made } = this;
      for (let box = 0; box < boxes.op.length; box++) {
        const turn = this.turn(this.view(box), boxes.iteration[box]);
        if (!made.has(turn)) made.set(turn, made.size);
      }
      this.index = new Int32Array(made.size * this.depth * this.homes * this.width * 3).fill(-1);
      for (let box = 0; box < boxes.op.length; box++) {
        const number = made.get(this.turn(this.view(box), boxes.iteration[box]));
        for (const phase of this.ops[boxes.op[box]].phases) {
          this.index[this.key(number, this.stage(box), boxes.home[box], boxes.microBatch[box], phase)] = box;
        }
      }
    }
    return this.index;
  }

  // In which view a box began, from 0. What an iteration left undone in one view goes to nobody in the next.
  view(box) {
    return firstAbove(this.begun, this.boxes.start[box], 0, this.begun.length);
  }

  turn(view, iteration) {
    return view * this.iterations + iteration;
  }

  key(number, stage, home, microBatch, phase) {
    return (((number * this.depth + stage) * this.homes + home) * this.width + microBatch) * 3 + phase;
  }

  place(view, iteration, stage, home, microBatch, phase) {
    const { places } = this;
    const number = this.made.get(this.turn(view, iteration));
    return number === undefined ? -1 : places[this.key(number, stage, home, microBatch, phase)];
  }

  // What is said of a time at which a row has no box: a new view, a pause before it, or a death.
  note(row, time, slack) {
    const dead = row.outages.find(([start, end]) => (start ?? -Infinity) - slack <= time && time <= (end ?? Infinity));
    const pause = row.pauses.find(([start, end]) => start - slack <= time && time <= end + slack);
    const view = this.views.find(([start]) => Math.abs(start - time) <= slack);
    return [dead?.[2], pause?.[2], view?.[2]].filter(Boolean);
  }

  // The box that a row has at a time, or next; -1 in a row without boxes.
  near({ boxes: { from, to } }, time) {
    return from === to ? -1 : Math.min(to - 1, firstAbove(this.boxes.end, time, from, to));
  }

  stage(box) {
    return this.boxes.chunk?.[box] ?? this.rows[this.rowOf[box]].stage;
  }

  begins(box) {
    return this.boxes.start[box] * this.scale;
  }

  stops(box) {
    return this.boxes.end[box] * this.scale;
  }

  rerouted(box) {
    const home = this.boxes.home[box];
    return home >= 0 && home !== this.rows[this.rowOf[box]].home;
  }

  // Whether any work is re-routed.
  get someMoved() {
    return (this.moved ??= this.boxes.home.some((_, box) => this.rerouted(box)));
  }

  // An amount of memory without needless digits.
  memoryText(amount) {
    return `${Number((amount / this.memoryScale[1]).toPrecision(3))}${this.memoryScale[0]}`;
  }

  // The boxes whose results a box needs.
  needs(box) {
    const { boxes } = this;
    const found = new Set();
    for (const phase of this.ops[boxes.op[box]].phases) {
      for (const [other, stage] of this.waits[this.stage(box)][phase]) {
        const place = this.place(this.view(box), boxes.iteration[box], stage, boxes.home[box], boxes.microBatch[box], other);
        if (place >= 0 && place !== box) found.add(place);
      }
    }
    return [...found];
  }

  // The boxes that need the result of a box.
  awaited(box) {
    const { boxes } = this;
    const found = new Set();
    for (let stage = 0; stage < this.depth; stage++) {
      if (Math.abs(stage - this.stage(box)) > 1) continue;
      for (let phase = 0; phase < 3; phase++) {
        const place = this.place(this.view(box), boxes.iteration[box], stage, boxes.home[box], boxes.microBatch[box], phase);
        if (place >= 0 && place !== box && this.needs(place).includes(box)) found.add(place);
      }
    }
    return [...found];
  }

  // The boxes of one micro-batch in one iteration, in the order of their starts; also of those that were given up.
  journey(iteration, home, microBatch) {
    const found = new Set();
    for (let view = 0; view <= this.views.length; view++) {
      for (let stage = 0; stage < this.depth; stage++) {
        for (let phase = 0; phase < 3; phase++) {
          const place = this.place(view, iteration, stage, home, microBatch, phase);
          if (place >= 0) found.add(place);
        }
      }
    }
    return [...found].sort((one, other) => this.boxes.start[one] - this.boxes.start[other]);
  }

  text(box) {
    const { op, home, microBatch } = this.boxes;
    const unit = home[box] < 0 ? '' : `${home[box]}.${microBatch[box]}`;
    return `${this.stage(box)}${this.ops[op[box]].name}${unit}`;
  }

  // The box of an instruction's text, on the first server that has it.
  find(text, iteration = 0) {
    for (let box = 0; box < this.boxes.op.length; box++) {
      if (this.boxes.iteration[box] === iteration && this.text(box) === text) return box;
    }
    return -1;
  }
}
