/**
 * `bytes` as a Buffer in which every look at or past `end` throws. What lies there need not change an answer for
 * it to be wrong to read it: the next frame may not have come yet.
 */
export function guardedBytes(bytes: Buffer, end: number): Buffer {
  return new Proxy(bytes, {
    get(target, key, proxy) {
      if (typeof key === 'string' && /^\d+$/.test(key) && Number(key) >= end) {
        throw new RangeError(`byte ${key} read, the end is at ${end}`);
      }
      const member: unknown = Reflect.get(target, key, target);
      if (typeof member !== 'function') return member;
      // readUInt16BE and its like look at `this[offset]`; the others are native and take a range.
      const isReader = typeof key === 'string' && key.startsWith('read');
      return (...args: unknown[]) => {
        const to = key === 'toString' ? args[2] : key === 'subarray' ? args[1] : end;
        if (typeof to !== 'number' || to > end) throw new RangeError(`${String(key)} past the end at ${end}`);
        return Reflect.apply(member, isReader ? proxy : target, args);
      };
    },
  });
}
