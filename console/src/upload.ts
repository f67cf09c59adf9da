// Uploads: sending a file with its progress, and the list of one's own.
import { address, ApiError, asJson, call, errorText, FROM_SCRIPT, get, withParams } from "./api";

export interface Upload {
  id: string;
  name: string;
  bytes: number;
  expiresMs: number;
}

export interface Uploads {
  uploads: Upload[];
  fileBytesMax: number;
  ownBytesMax: number;
}

const UPLOADS = "/penstock/v1/uploads";

export const listUploads = (signal?: AbortSignal): Promise<Uploads> => get<Uploads>(UPLOADS, signal);

export const deleteUpload = (id: string): Promise<unknown> =>
  call("DELETE", `${UPLOADS}/${encodeURIComponent(id)}`);

/** Sends a file. `fetch` does not report how much it has sent. Throws ApiError. */
export function sendFile(
  file: File,
  onSent: (bytes: number) => void,
  signal: AbortSignal,
): Promise<Upload> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", address(withParams(UPLOADS, { name: file.name })));
    for (const [name, value] of Object.entries(FROM_SCRIPT)) request.setRequestHeader(name, value);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.onprogress = (event) => onSent(event.loaded);
    request.onload = () => {
      const body = asJson(request.responseText);
      if (request.status === 200) resolve(body as Upload);
      else reject(new ApiError(request.status, errorText(request.status, body)));
    };
    // A server that refuses a file may close the connection before the file has been sent.
    request.onerror = () =>
      reject(new ApiError(0, `the server did not take ${file.name}: it is restarting, or refuses the file`));
    request.onabort = () => reject(new ApiError(0, `the upload of ${file.name} was cancelled`));
    signal.addEventListener("abort", () => request.abort());
    request.send(file);
  });
}
