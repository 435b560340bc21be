import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const DOCKERFILE = fileURLToPath(new URL('../../../deploy/Dockerfile', import.meta.url));

/** What the image runs by itself: Node, its flags, the script. */
export function imageEntrypoint(): string[] {
  return JSON.parse(/^ENTRYPOINT (.*)$/m.exec(readFileSync(DOCKERFILE, 'utf8'))?.[1] ?? '[]') as string[];
}

/** What the image gives Node besides the script, so that what is tested and measured is what runs. */
export function imageNodeFlags(): string[] {
  return imageEntrypoint().filter((argument) => argument.startsWith('--'));
}
