export async function prepare() {}
export async function enter() {}
export const redraw = () => {};
export const address = () => "#/compare";
