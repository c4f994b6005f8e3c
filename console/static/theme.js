// Sets the theme before anything is drawn. Loaded in the head, not as a module.
(() => {
  const stored = (() => {
    try { return localStorage.getItem('tidemark.theme'); } catch { return null; }
  })();
  if (stored === 'light' || stored === 'dark') document.documentElement.dataset.theme = stored;
})();
