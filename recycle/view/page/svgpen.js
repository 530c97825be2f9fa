// A pen that the drawing functions take for a canvas, and that writes SVG.

const NAMESPACE = 'http://www.w3.org/2000/svg';
const escape = (text) => text.replace(/[&<>"]/g, (each) => `&#${each.charCodeAt(0)};`);
const number = (value) => Number(value.toFixed(2));
const ANCHORS = { left: 'start', center: 'middle', right: 'end' };

export class SvgPen {
  // ``ruler`` is the pen of a canvas, which knows how wide texts are; ``hatches`` are the patterns of the theme.
  constructor(width, height, ruler, hatches, homes) {
    Object.assign(this, { width, height, ruler, hatches, homes });
    this.parts = [];
    this.path = '';
    this.clips = 0;
    this.open = []; // per saved state, how many groups it has opened
    this.state = { fillStyle: '#000000', strokeStyle: '#000000', lineWidth: 1, globalAlpha: 1, font: '11px sans-serif', textAlign: 'left', textBaseline: 'alphabetic', dash: [], groups: 0 };
    for (const name of Object.keys(this.state)) {
      if (name === 'dash' || name === 'groups') continue;
      Object.defineProperty(this, name, { get: () => this.state[name], set: (value) => { this.state[name] = value; } });
    }
  }

  save() {
    this.open.push(this.state);
    this.state = { ...this.state, groups: 0 };
  }

  restore() {
    this.parts.push('</g>'.repeat(this.state.groups));
    this.state = this.open.pop();
  }

  // A canvas has several pixels for one of the page; a picture has not.
  setTransform() {
    this.path = '';
  }

  setLineDash(dash) {
    this.state.dash = dash;
  }

  // A picture is drawn once.
  clearRect() {
    this.path = '';
  }

  colour(style) {
    return typeof style === 'string' ? style : `url(#hatch${this.hatches.indexOf(style)})`;
  }

  filled() {
    const style = `fill="${this.colour(this.fillStyle)}"`;
    return this.globalAlpha < 1 ? `${style} fill-opacity="${this.globalAlpha}"` : style;
  }

  stroked() {
    const dash = this.state.dash.length ? ` stroke-dasharray="${this.state.dash.join(' ')}"` : '';
    return `fill="none" stroke="${this.colour(this.strokeStyle)}" stroke-width="${this.lineWidth}"${dash}`;
  }

  box(x, y, width, height) {
    return `x="${number(Math.min(x, x + width))}" y="${number(Math.min(y, y + height))}" width="${number(Math.abs(width))}" height="${number(Math.abs(height))}"`;
  }

  fillRect(x, y, width, height) {
    this.parts.push(`<rect ${this.box(x, y, width, height)} ${this.filled()}/>`);
  }

  strokeRect(x, y, width, height) {
    this.parts.push(`<rect ${this.box(x, y, width, height)} ${this.stroked()}/>`);
  }

  beginPath() {
    this.path = '';
  }

  moveTo(x, y) {
    this.path += `M${number(x)} ${number(y)}`;
  }

  lineTo(x, y) {
    this.path += `${this.path ? 'L' : 'M'}${number(x)} ${number(y)}`;
  }

  rect(x, y, width, height) {
    this.path += `M${number(x)} ${number(y)}h${number(width)}v${number(height)}h${number(-width)}z`;
  }

  roundRect(x, y, width, height) {
    this.rect(x, y, width, height);
  }

  fill() {
    this.parts.push(`<path d="${this.path}" ${this.filled()}/>`);
  }

  stroke() {
    this.parts.push(`<path d="${this.path}" ${this.stroked()}/>`);
  }

  clip() {
    const name = `clip${this.clips++}`;
    this.parts.push(`<clipPath id="${name}"><path d="${this.path}"/></clipPath><g clip-path="url(#${name})">`);
    this.state.groups++;
  }

  measureText(text) {
    this.ruler.font = this.font;
    return this.ruler.measureText(text);
  }

  text(text, x, y, paint, room) {
    const bold = this.font.startsWith('bold') ? ' font-weight="bold"' : '';
    const size = /([\d.]+)px/.exec(this.font)[1];
    const middle = this.textBaseline === 'middle' ? y + 0.35 * Number(size) : y;
    const fit = room !== undefined && this.measureText(text).width > room ? ` textLength="${number(room)}" lengthAdjust="spacingAndGlyphs"` : '';
    this.parts.push(`<text x="${number(x)}" y="${number(middle)}" font-size="${size}"${bold} text-anchor="${ANCHORS[this.textAlign]}"${fit} ${paint}>${escape(text)}</text>`);
  }

  fillText(text, x, y, room) {
    this.text(text, x, y, this.filled(), room);
  }

  strokeText(text, x, y) {
    this.text(text, x, y, this.stroked());
  }

  createImageData(width, height) {
    return this.ruler.createImageData(width, height);
  }

  // Pixels stay pixels: an image within the picture.
  putImageData(image, x, y) {
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [image.width, image.height];
    canvas.getContext('2d').putImageData(image, 0, 0);
    const ratio = window.devicePixelRatio || 1;
    this.parts.push(`<image ${this.box(x / ratio, y / ratio, image.width / ratio, image.height / ratio)} href="${canvas.toDataURL()}"/>`);
  }

  toString() {
    const lines = 'd="M-6 6L0 0M0 6L6 0M6 6L12 0" stroke-width="1.4" stroke-opacity=".75"';
    const tile = 'width="6" height="6" patternUnits="userSpaceOnUse"';
    const hatches = this.homes.map((home, place) => `<pattern id="hatch${place}" ${tile}><path ${lines} stroke="${home}"/></pattern>`);
    const size = `width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}"`;
    const head = `<svg xmlns="${NAMESPACE}" ${size} font-family="DejaVu Sans, Verdana, sans-serif">`;
    return [head, '<defs>', ...hatches, '</defs>', ...this.parts, '</svg>', ''].join('\n');
  }
}
