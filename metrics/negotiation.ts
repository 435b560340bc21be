import type { ExpositionFormat } from './registry.js';

interface Offer {
  /** Lower case: a media type, an encoding, or a wildcard. */
  readonly value: string;
  readonly parameters: ReadonlyMap<string, string>;
  /** 0 to 1; 0 means "not this". */
  readonly quality: number;
}

/**
 * OpenMetrics when `Accept` names it at least as high as plain text, else Prometheus text, also where neither is
 * acceptable: a scraper that asks for something else gets what every scraper reads. Prometheus offers a list such
 * as `application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*\/*;q=0.1`.
 */
export function negotiateFormat(accept: string | undefined): ExpositionFormat {
  let openMetrics = 0;
  let text = 0;
  for (const { value, parameters, quality } of offers(accept)) {
    const version = parameters.get('version') ?? '1.0.0';
    if (value === 'application/openmetrics-text' && version === '1.0.0') {
      openMetrics = Math.max(openMetrics, quality);
    } else if (value === 'text/plain') {
      text = Math.max(text, quality);
    }
  }
  return openMetrics > 0 && openMetrics >= text ? 'openmetrics' : 'text';
}

/** Whether `Accept-Encoding` allows gzip: by name, or by `*` where the name does not stand (RFC 9110, 12.5.3). */
export function acceptsGzip(acceptEncoding: string | undefined): boolean {
  let named: number | undefined;
  let wildcard = 0;
  for (const { value, quality } of offers(acceptEncoding)) {
    if (value === 'gzip' || value === 'x-gzip') named = Math.max(named ?? 0, quality);
    if (value === '*') wildcard = quality;
  }
  return (named ?? wildcard) > 0;
}

function offers(header: string | undefined): Offer[] {
  return (header ?? '').split(',').map((item) => {
    const [value = '', ...rest] = item.split(';').map((part) => part.trim().toLowerCase());
    const parameters = new Map(
      rest.map((part) => {
        const [name = '', text = ''] = part.split('=', 2);
        return [name.trim(), text.trim().replace(/^"(.*)"$/, '$1')];
      }),
    );
    const quality = Number(parameters.get('q') ?? 1);
    return { value, parameters, quality: quality >= 0 && quality <= 1 ? quality : 0 };
  });
}
