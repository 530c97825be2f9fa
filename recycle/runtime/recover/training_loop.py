"""The loop of a training that is taken from iteration to iteration, and what comes between two of them."""

from recycle.control.host.agent import DONE
from recycle.runtime.errors import ViewBroken
from recycle.runtime.recover.admission import AdmissionPause
from recycle.runtime.recover.survivor import Survivor
from recycle.runtime.recover.view_reports import ADMITTED
from recycle.runtime.step.trainee import Loop


class TrainingLoop:
    """Trains through failures.

    Args:
        survivor: takes the training from view to view.
        loop: the training, iteration by iteration.
    """

    def __init__(self, survivor: Survivor, loop: Loop) -> None:
        self._survivor = survivor
        self._loop = loop
        self._saved_unprotected = False
        self._heard_unsaved = False

    def run(self) -> int:
        """Train until the end, or until this process has to end; gives its exit status."""
        survivor = self._survivor
        try:
            survivor.begin()
            while survivor.end is None:
                try:
                    if self._train():
                        return DONE
                except ViewBroken as error:
                    survivor.recover(error)
            return survivor.end
        finally:
            survivor.stop()

    def _train(self) -> bool:
        """Make the iterations that are left; whether they were all made, as far as this process may go on."""
        survivor, loop = self._survivor, self._loop
        loop.between(survivor.step, save=False, settle=False)
        while survivor.step < loop.last:
            loop.iterate(survivor.step)
            survivor.advance()
            self._at_boundary()
            if survivor.end is not None:
                return False
        survivor.leave()
        return True

    def _at_boundary(self) -> None:
        survivor, loop = self._survivor, self._loop
        # Where it was heard already, who says it again is not heard a second time before the next attempt has failed.
        heard = survivor.exchange_notices(unsaved=loop.saves_again and not self._heard_unsaved)
        # Every server hears in the same iteration that one has lost the store: a checkpoint is made once.
        save = heard.unprotected > 0 and not self._saved_unprotected
        self._saved_unprotected = heard.unprotected > 0
        save = save or (heard.unsaved > 0 and not self._heard_unsaved)
        self._heard_unsaved = heard.unsaved > 0
        admits, parting = heard.admit > 0 and heard.unprotected == 0, survivor.is_parting
        save = save or survivor.is_end or survivor.takes_shards
        loop.between(survivor.step, save=save, settle=admits or parting)
        if survivor.step == loop.last:
            return
        if parting:
            survivor.part(saved=not loop.owes_checkpoint)
            return
        if admits:
            raise AdmissionPause(ADMITTED)
        survivor.serve()
